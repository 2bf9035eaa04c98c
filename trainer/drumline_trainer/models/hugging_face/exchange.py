"""Weights in both directions, a tensor at a time, every name and shape checked before the first.

A run may name other classes than the folder of a ViT, which begins the classifier anew. It may also
take images of another size, for which the position embeddings are interpolated.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from drumline_contract.buckets.path import AnyPath, make_folder, remove_file
from drumline_contract.config import Family, ModelConfig
from drumline_contract.shapes.hugging_face import (
    CONFIG_FILE,
    IMAGE_PROCESSOR_FILE,
    HuggingFaceError,
    check_image_processor,
    class_labels,
    differences,
    fitted,
    has_no_classifier,
    image_processor,
    is_multimodal,
    kind_of,
    kind_of_file,
    module_name,
    read_config,
    read_json,
    to_ours,
    to_theirs,
)
from drumline_contract.shapes.hugging_face.kind import TensorNames
from drumline_trainer.models.decoder import TIED_WEIGHT
from drumline_trainer.models.hugging_face.files import (
    TensorFiles,
    copy_companions,
    opened,
    write_json,
    write_tensors,
)
from drumline_trainer.models.hugging_face.names import (
    HEAD_NAME,
    Shapes,
    Theirs,
    further_layers,
    matched,
    our_shapes,
    stored_names,
    their_tensors,
)
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

HEAD: Final = ("output.weight", "output.bias")
"""Our names of the weights of a head or a classifier."""
_COMPARED_ROWS: Final = 4096
"""Number of compared rows of a head and an embedding, evenly spread. A separately trained head
differs in every row."""


def with_positions_of(stored_SD: Tensor, *, positions: int) -> Tensor:
    """Resize position embeddings to another number of patches, as `interpolate_pos_encoding` does.

    The first is the class token's and stays; the others are a square of patches, bicubic between
    them.
    https://github.com/huggingface/transformers/blob/main/src/transformers/models/vit/modeling_vit.py

    Shapes: S positions, D hidden.
    """
    if len(stored_SD) == positions:
        return stored_SD
    side_there, side_here = math.isqrt(len(stored_SD) - 1), math.isqrt(positions - 1)
    patches_1DHW = stored_SD[1:].float().T.reshape(1, -1, side_there, side_there)
    resized_1DHW = F.interpolate(
        patches_1DHW, size=(side_here, side_here), mode="bicubic", align_corners=False
    )
    return torch.cat((stored_SD[:1].float(), resized_1DHW.flatten(2)[0].T))


logger = logging.getLogger(__name__)

_LEAVE_THE_MODEL = (
    "name no model: in a TrainingJob trainer.model is FromFolder then, on a command line there is"
    " neither --preset nor model.hidden_size"
)
_BEGUN_FILE = "export-begun.json"
"""Description of an export that has not finished."""


def export_hugging_face(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    folder: AnyPath,
    *,
    dtype: torch.dtype = torch.float32,
    max_file_bytes: int = 5_000_000_000,
    like: AnyPath | None = None,
    identity: str = "",
    class_names: Sequence[str] = (),
    print_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Write a folder that `transformers` loads.

    config.json is written last, so a folder without it is an unfinished export. A repeated export
    with the same identity continues after the complete files.

    Args:
        weights: by our names. Only `weights[name]` is read, and rarely more than one at a time, so
            a mapping may load them lazily.
        config: configuration of the model.
        folder: created if it does not exist.
        dtype: dtype of the tensors in the files, but for those that are always kept in fp32.
        max_file_bytes: a larger model becomes several files and an index.
        like: the folder that the model came from: its model type, special tokens, tokenizer, chat
            template and generation settings are copied.
        identity: identifies the weights. Empty: unknown, so no earlier export is continued.
        class_names: class names of an image model. Empty: those of `like`, if their number fits.
        print_line: called for every file of several.

    Raises:
        HuggingFaceError: the model is not supported, or a weight is missing or of another shape.
    """
    source = None if like is None else read_config(like)
    described = to_theirs(config, dtype=str(dtype).removeprefix("torch."), like=source)
    described |= class_labels(config.classes, class_names) if class_names else {}
    names = kind_of(config, like=source).names
    shapes = our_shapes(config)
    entries = {entry.name: entry for entry in their_tensors(config, names)}
    types = {name: torch.float32 if entry.fp32 else dtype for name, entry in entries.items()}
    numbers = {name: math.prod(entry.shape(shapes)) for name, entry in entries.items()}
    sizes = {name: number * types[name].itemsize for name, number in numbers.items()}
    cached = _LastRead(weights, shapes)

    make_folder(folder)
    begun = {"identity": identity, "files": [max_file_bytes, sizes]}
    goes_on = bool(identity) and _is_begun(folder, begun)
    remove_file(folder / CONFIG_FILE)
    write_json(folder / _BEGUN_FILE, begun)
    write_tensors(
        folder,
        sizes,
        lambda name: _theirs(entries[name], cached).to(types[name]).contiguous(),
        max_file_bytes=max_file_bytes,
        goes_on=goes_on,
        print_line=print_line,
    )
    _write_companions(folder, config, like=like)
    write_json(folder / CONFIG_FILE, described)
    remove_file(folder / _BEGUN_FILE)


def _write_companions(folder: AnyPath, config: ModelConfig, *, like: AnyPath | None) -> None:
    """Write the other files of inference: those of `like`, or ours without one."""
    if like is not None:
        copy_companions(like, folder)
    if config.family is not Family.VIT:
        return
    resized = like is not None and to_ours(read_config(like)).image_size != config.image_size
    if resized or not (folder / IMAGE_PROCESSOR_FILE).exists():
        write_json(folder / IMAGE_PROCESSOR_FILE, image_processor(config))


def _theirs(entry: Theirs, weights: _LastRead) -> Tensor:
    """Build the foreign tensor from ours."""
    parts = [weights[ours] for ours in entry.ours]
    if entry.expert is not None:
        parts = [part[entry.expert] for part in parts]
    whole = torch.stack(parts, dim=2).flatten(1, 2) if entry.interleaved else torch.cat(parts)
    whole = whole.float() - entry.offset if entry.offset else whole
    if entry.viewed is not None:
        return whole.reshape(entry.viewed)
    return whole.mT if entry.transposed else whole


def _is_begun(folder: AnyPath, begun: Mapping[str, Any]) -> bool:
    """Return whether the same export was begun there and has not finished."""
    try:
        return read_json(folder / _BEGUN_FILE) == begun
    except HuggingFaceError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedFolder:
    """A folder whose names and shapes are those of the model it describes."""

    folder: AnyPath
    config: ModelConfig
    shapes: Shapes
    entries: list[tuple[str, Theirs]]
    """Tensors by their names in the files."""

    def begun_anew(self, config: ModelConfig) -> frozenset[str]:
        """Return our names of the tensors that start untrained, such as those of a new classifier.

        Raises:
            HuggingFaceError: the folder holds another model.
        """
        differing = differences(fitted(self.config, config), config)
        if differing:
            raise HuggingFaceError(
                f"{self.folder} holds another model: {'; '.join(differing)}; to train the folder's"
                f" own, {_LEAVE_THE_MODEL}"
            )
        if config.family is not Family.VIT:
            return frozenset()
        there = {name for _, entry in self.entries for name in entry.ours}
        if self.config.classes == config.classes and there.issuperset(HEAD):
            return frozenset()
        logger.info("%s: a classifier of %d classes begins at random", self.folder, config.classes)
        return frozenset(HEAD)

    @classmethod
    def of(cls, folder: AnyPath, *, model: ModelConfig | None = None) -> _CheckedFolder:
        """Check a folder for a wanted model, or its own one. Raises as `import_hugging_face`."""
        raw = read_config(folder)
        config = _with_own_head(folder, to_ours(raw), kind_of_file(raw).names, model=model)
        shapes = our_shapes(config)
        kind = kind_of_file(raw)
        if config.family is Family.VIT and (folder / IMAGE_PROCESSOR_FILE).exists():
            check_image_processor(read_json(folder / IMAGE_PROCESSOR_FILE), config)
        with opened(folder) as files:
            stored = files.names
            further = further_layers(stored, config) if kind.further_layers else set[str]()
            wanted = their_tensors(config, kind.names)
            if has_no_classifier(raw):
                wanted = [entry for entry in wanted if entry.ours[0] not in HEAD]
            entries = matched(stored - further, wanted, config=config)
            for name, entry in entries:
                if files.shape(name) != entry.shape(shapes):
                    raise HuggingFaceError(
                        f"{name}: shape {files.shape(name)}, and config.json asks for"
                        f" {entry.shape(shapes)}"
                    )
        if further:
            logger.info(
                "%s: %d tensors of layers that predict further tokens are left out",
                folder,
                len(further),
            )
        return cls(folder=folder, config=config, shapes=shapes, entries=entries)


def _with_own_head(
    folder: AnyPath, config: ModelConfig, names: TensorNames, *, model: ModelConfig | None
) -> ModelConfig:
    """Return the model with an untied head if the files have one that differs from the embedding.

    config.json may declare them tied although a fine-tune has trained the head separately.
    transformers keeps it separate from version 5 on. At most `_COMPARED_ROWS` rows are compared.

    Raises:
        HuggingFaceError: there is such a head, and the wanted model has none.
    """
    if not config.head_is_embedding:
        return config
    apart = replace(config, tied_embeddings=False)
    (embedding,) = (
        entry.name for entry in their_tensors(config, names) if entry.ours == (TIED_WEIGHT,)
    )
    with opened(folder) as files:
        stored = stored_names(files.names)
        head = stored(HEAD_NAME)
        if head not in files.names or stored(embedding) not in files.names:
            return config
        if model is not None and not model.tied_embeddings:
            return apart
        if not _differ(files, head, stored(embedding)):
            return config
    if model is None:
        return apart
    raise HuggingFaceError(
        f"{folder}: {head} is not the embedding, although config.json says tie_word_embeddings; set"
        " model.tied_embeddings to false to keep this head, or take the tensor out of the files"
    )


def _differ(files: TensorFiles, head: str, embedding: str) -> bool:
    """Return whether two matrices have different rows, among the compared ones."""
    if files.shape(head) != files.shape(embedding):
        return True
    rows, block = files.shape(head)[0], 64
    apart = max(block, rows // (_COMPARED_ROWS // block))
    for first in range(0, rows, apart):
        index = (slice(first, min(first + block, rows)), slice(None))
        if not torch.equal(files.read_part(head, index), files.read_part(embedding, index)):
            return True
    return False


def check_hugging_face(folder: AnyPath, config: ModelConfig) -> None:
    """Raise the HuggingFaceError that `load_hugging_face` would raise. Read a few rows at most."""
    _CheckedFolder.of(folder, model=config).begun_anew(config)


def import_hugging_face(folder: AnyPath) -> tuple[ModelConfig, Iterator[tuple[str, Tensor]]]:
    """Return the model of a folder, and its weights by our names, read lazily.

    An encoder of images without a classifier lacks the weights of that.

    Raises:
        HuggingFaceError: config.json describes an unsupported model, or a tensor is missing,
            unknown or of another shape; the message names it.
    """
    checked = _CheckedFolder.of(folder)
    return checked.config, _weights(folder, checked.entries, checked.shapes)


def load_hugging_face(
    folder: AnyPath,
    slices: Iterable[TensorSlice],
    *,
    config: ModelConfig,
    progress: Callable[[], None] = lambda: None,
) -> frozenset[str]:
    """Fill whatever parts of the weights this rank holds from a folder.

    Of the files only these parts are read, a part at a time; of tensors in which ours alternate
    (GPT-OSS's experts) all of the experts that are here, and ViT's patches and positions whole.
    `progress` is called between two tensors.

    Args:
        folder: folder with config.json and safetensors files.
        slices: this rank's parts of the weights.
        config: shape of the model.
        progress: called between tensors.

    Returns:
        Names of weights that are to begin at random: the classifier of a ViT whose classes are
        others than the folder's, or that has none there. For images of another size its position
        embeddings are interpolated.

    Raises:
        HuggingFaceError: as `import_hugging_face`, or the folder holds another model than `config`.
    """
    with opened_weights(folder, config=config) as weights:
        weights.fill(slices, progress=progress)
        return weights.absent


@contextmanager
def opened_weights(folder: AnyPath, *, config: ModelConfig) -> Generator[OpenedWeights]:
    """Open a folder to fill slices again and again.

    Raises:
        HuggingFaceError: as `load_hugging_face`.
    """
    checked = _CheckedFolder.of(folder, model=config)
    absent = checked.begun_anew(config)
    with opened(folder) as files:
        yield OpenedWeights(checked=checked, files=files, absent=absent)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWeights:
    """The weights of a folder that is open."""

    checked: _CheckedFolder
    files: TensorFiles
    absent: frozenset[str]
    """Names of those that are to begin at random."""

    def fill(
        self, slices: Iterable[TensorSlice], *, progress: Callable[[], None] = lambda: None
    ) -> None:
        """See `load_hugging_face`."""
        parts = defaultdict[str, list[TensorSlice]](list)
        for part in slices:
            if part.name not in self.absent:
                parts[part.name].append(part)
        for name, entry in self.checked.entries:
            progress()
            wanted = [part for ours in entry.ours if ours in parts for part in parts[ours]]
            if entry.interleaved and wanted:
                _fill_alternating(wanted, self.files, name, entry)
                continue
            for part in wanted:
                _fill(part, self.files, name, entry, self.checked.shapes)


def _fill(part: TensorSlice, files: TensorFiles, name: str, entry: Theirs, shapes: Shapes) -> None:
    """Fill a slice from the interval of the foreign tensor that holds it."""
    if entry.viewed is not None:
        whole = files.read(name).reshape(shapes[part.name])
        if part.shape != whole.shape:
            whole = with_positions_of(whole, positions=part.shape[0])
        everything = Box(offsets=(0,) * whole.dim(), shape=tuple(whole.shape))
        part.tensor.copy_(whole[part.box.slices_within(everything)])
        return
    offsets, sizes, room = list(part.box.offsets), list(part.box.shape), part.tensor
    if entry.expert is not None:
        row = entry.expert - offsets.pop(0)
        if not 0 <= row < sizes.pop(0):
            return
        room = room[row]
    before = entry.ours[: entry.ours.index(part.name)]
    offsets[0] += sum(entry.rows(ours, shapes) for ours in before)
    index = [slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True)]
    if entry.transposed:
        index[-2:] = reversed(index[-2:])
    tensor = files.read_part(name, tuple(index))
    tensor = tensor.mT if entry.transposed else tensor
    room.copy_(tensor.float() + entry.offset if entry.offset else tensor)


def _fill_alternating(
    wanted: list[TensorSlice], files: TensorFiles, name: str, entry: Theirs
) -> None:
    first = min(part.box.offsets[0] for part in wanted)
    stop = max(part.box.offsets[0] + part.box.shape[0] for part in wanted)
    rest = (slice(None),) * (len(files.shape(name)) - 1)
    tensor = files.read_part(name, (slice(first, stop), *rest))
    for ours, whole in zip(entry.ours, _apart(tensor, entry), strict=True):
        box = Box(offsets=(first, *(0 for _ in rest)), shape=tuple(whole.shape))
        for part in (part for part in wanted if part.name == ours):
            part.tensor.copy_(whole[part.box.slices_within(box)])


def _apart(tensor: Tensor, entry: Theirs) -> tuple[Tensor, ...]:
    """Split a stored tensor into ours, whose rows alternate along its dimension 1."""
    tensor = tensor.mT if entry.transposed else tensor
    inner = tensor.shape[1] // len(entry.ours)
    return tensor.reshape(len(tensor), inner, len(entry.ours), *tensor.shape[2:]).unbind(2)


def projection_names(folder: AnyPath, config: ModelConfig) -> dict[str, str]:
    """Map our linear layers that are modules of their own in transformers to their names there.

    Raises:
        HuggingFaceError: as `import_hugging_face`.
    """
    names = kind_of_file(read_config(folder)).names
    outer = is_multimodal(folder)
    return {
        entry.ours[0].removesuffix(".weight"): module_name(entry.name, multimodal=outer)
        for entry in their_tensors(config, names)
        if entry.is_linear_layer
    }


def _weights(
    folder: AnyPath, entries: list[tuple[str, Theirs]], shapes: Shapes
) -> Iterator[tuple[str, Tensor]]:
    with opened(folder) as files:
        experts: list[Tensor] = []
        for name, entry in entries:
            tensor = files.read(name)
            if entry.interleaved:
                yield from zip(entry.ours, _apart(tensor, entry), strict=True)
                continue
            tensor = tensor.mT if entry.transposed else tensor
            tensor = tensor.float() + entry.offset if entry.offset else tensor
            if entry.expert is not None:
                experts.append(tensor)
                if len(experts) == shapes[entry.ours[0]][0]:
                    yield entry.ours[0], torch.stack(experts)
                    experts = []
                continue
            if entry.viewed is not None:
                tensor = tensor.reshape(shapes[entry.ours[0]])
            rows = [entry.rows(ours, shapes) for ours in entry.ours]
            yield from zip(entry.ours, tensor.split(rows), strict=True)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - untyped in torch


class _LastRead:
    """Weights of the shapes they must have; the last one is kept, for all its experts."""

    def __init__(self, weights: Mapping[str, Tensor], shapes: Shapes) -> None:
        self._weights = weights
        self._shapes = shapes
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self._last is None or self._last[0] != name:
            self._last = (name, self._read(name))
        return self._last[1]

    def _read(self, name: str) -> Tensor:
        try:
            tensor = self._weights[name].detach().cpu()
        except KeyError as error:
            raise HuggingFaceError(f"{name}: missing among the weights") from error
        if tuple(tensor.shape) != self._shapes[name]:
            raise HuggingFaceError(
                f"{name}: shape {tuple(tensor.shape)}, and the model has {self._shapes[name]}"
            )
        return tensor
