"""Weights in both directions, a tensor at a time, every name and shape checked before the first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from drumline_trainer.config import ModelConfig
from drumline_trainer.models.hugging_face.files import (
    CONFIG_FILE,
    opened,
    read_json,
    write_json,
    write_tensors,
)
from drumline_trainer.models.hugging_face.names import Shapes, Theirs, our_shapes, their_tensors
from drumline_trainer.shapes.hugging_face import (
    HuggingFaceError,
    differences,
    kind_of,
    kind_of_file,
    to_ours,
    to_theirs,
)
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

_NOT_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Constants that older versions stored: masks and the frequencies of rotary positions."""


def export_hugging_face(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Write a folder that `transformers` loads.

    config.json is written last, so that a folder without it is an export that did not finish.

    Args:
        weights: by our names; only `weights[name]` is asked for, and hardly more than one at a
            time, so that a mapping may read them from somewhere.
        config: of the model.
        folder: made where it does not exist.
        dtype: of the tensors in the files.
        max_file_bytes: a larger model becomes several files and an index.

    Raises:
        HuggingFaceError: the model has no layout there, or a weight is missing or of another shape.
    """
    described = to_theirs(config, dtype=str(dtype).removeprefix("torch."))
    shapes = our_shapes(config)
    entries = {entry.name: entry for entry in their_tensors(config, kind_of(config).names)}
    sizes = {
        name: math.prod(entry.shape(shapes)) * dtype.itemsize for name, entry in entries.items()
    }
    cached = _LastRead(weights, shapes)

    def tensor_of(name: str) -> Tensor:
        entry = entries[name]
        parts = [cached[ours] for ours in entry.ours]
        if entry.expert is not None:
            parts = [part[entry.expert] for part in parts]
        whole = torch.cat(parts)
        return (whole.T if entry.transposed else whole).to(dtype).contiguous()

    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder, sizes, tensor_of, max_file_bytes=max_file_bytes)
    write_json(folder / CONFIG_FILE, described)


def import_hugging_face(folder: Path) -> tuple[ModelConfig, Iterator[tuple[str, Tensor]]]:
    """The model of a folder, and its weights by our names, read as they are asked for.

    Raises:
        HuggingFaceError: config.json describes a model that ours cannot be, or a tensor is missing,
            unknown or of another shape; says which.
    """
    raw = read_json(folder / CONFIG_FILE)
    config = to_ours(raw)
    shapes = our_shapes(config)
    names = kind_of_file(raw).names
    with opened(folder) as files:
        entries = _matched(files.names, their_tensors(config, names), config=config)
        for name, entry in entries:
            if files.shape(name) != entry.shape(shapes):
                raise HuggingFaceError(
                    f"{name}: shape {files.shape(name)}, and config.json asks for"
                    f" {entry.shape(shapes)}"
                )
    return config, _weights(folder, entries, shapes)


def load_hugging_face(folder: Path, slices: Iterable[TensorSlice], *, config: ModelConfig) -> None:
    """Fill whatever parts of the weights this rank holds from a folder; reads little else of it.

    Raises:
        HuggingFaceError: as `import_hugging_face`, or the folder holds another model than `config`.
    """
    stored, weights = import_hugging_face(folder)
    differing = differences(stored, config)
    if differing:
        raise HuggingFaceError(f"{folder} holds another model: {'; '.join(differing)}")
    parts = defaultdict[str, list[TensorSlice]](list)
    for part in slices:
        parts[part.name].append(part)
    for name, tensor in weights:
        whole = Box(offsets=(0,) * tensor.dim(), shape=tuple(tensor.shape))
        for part in parts[name]:
            part.tensor.copy_(tensor[part.box.slices_within(whole)])


def _matched(
    names: set[str], wanted: list[Theirs], *, config: ModelConfig
) -> list[tuple[str, Theirs]]:
    """The name in the files of every tensor we need. Raises HuggingFaceError."""
    bare = "wte.weight" in names  # GPT-2 without its head, as it was first published
    entries = [(e.name.removeprefix("transformer.") if bare else e.name, e) for e in wanted]
    needed = {name for name, _ in entries}
    unused: set[str] = {"lm_head.weight"} if config.tied_embeddings else set()
    extra = {name for name in names - needed - unused if not name.endswith(_NOT_WEIGHTS)}
    for wrong, what in ((needed - names, "missing"), (extra, "unknown")):
        if wrong:
            listing = ", ".join(sorted(wrong)[:3]) + (" ..." if len(wrong) > 3 else "")
            raise HuggingFaceError(f"{len(wrong)} tensors are {what}: {listing}")
    return entries


def _weights(
    folder: Path, entries: list[tuple[str, Theirs]], shapes: Shapes
) -> Iterator[tuple[str, Tensor]]:
    with opened(folder) as files:
        experts: list[Tensor] = []
        for name, entry in entries:
            tensor = files.read(name)
            tensor = tensor.T if entry.transposed else tensor
            if entry.expert is not None:
                experts.append(tensor)
                if len(experts) == shapes[entry.ours[0]][0]:
                    yield entry.ours[0], torch.stack(experts)
                    experts = []
                continue
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
