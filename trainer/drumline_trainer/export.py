"""`export`: a checkpoint's weights as a folder that Hugging Face's transformers loads.

One process, a tensor at a time, whatever layout saved them. The digests of all files are verified
first. Adapters are merged into their base weights, which are read or drawn one by one for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drumline_contract import HUB_SCHEME
from drumline_contract.buckets.hub import HubPlace
from drumline_contract.buckets.path import AnyPath, read_file, remove_file, write_file
from drumline_contract.config import ConfigError, Family, LoraConfig, ModelConfig, TrainerConfig
from drumline_contract.config.saved import refuse_other_model, saved_configuration
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.adapters.base import check_base
from drumline_trainer.adapters.base_weights import opened_base
from drumline_trainer.adapters.lora import merge_adapter
from drumline_trainer.adapters.peft import ADAPTER_FILES, write_peft
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    digest_line,
)
from drumline_trainer.checkpoint.shard_file import verify_chunks
from drumline_trainer.checkpoint.storage import StepFiles
from drumline_trainer.data.records.template_files import MOST_TEMPLATE_BYTES, TEMPLATE_FILE
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.hugging_face.files import remove_more_templates
from drumline_trainer.models.transformers.exported import export_module
from drumline_trainer.optimization.average import AVERAGE
from drumline_trainer.sharding.boxes import Box

_PREFIX = "model."
"""Prefix of weights among a checkpoint's tensors; see `optimization`."""


class CheckpointWeights(Mapping[str, Tensor]):
    """The weights of one checkpoint by name, each read at every access."""

    def __init__(self, files: StepFiles, *, average: bool = False) -> None:
        """Verify all files.

        Args:
            files: files of the checkpoint.
            average: read the average of the weights, not the weights.

        Raises:
            CorruptCheckpointError: one does not verify.
            ConfigError: there is no average.
        """
        self._files = files
        self._prefix = f"{AVERAGE}." if average else _PREFIX
        # Phase 1: the manifest, checked against its digest, names all files.
        self._manifest = _manifest(files)
        # Phase 2: every byte is verified before a weight is used, which reads the checkpoint twice.
        for name, record in self._manifest.files.items():
            verify_chunks(files.chunks(name, record), record, name=name)
        if average:
            self._check_average()

    def _check_average(self) -> None:
        # Without a loss scale in the state no step was skipped.
        match self.trainer.get("loss_scale"):
            case {"skipped": int(skipped)}:
                pass
            case _:
                skipped = 0
        # The average begins with the first update. Without any update it has no contents.
        if not len(self) or self._manifest.step <= skipped:
            why = "every step was skipped" if len(self) else "optimizer.average_decay was 0"
            raise ConfigError(f"--average: the checkpoint holds none of the weights: {why}")

    @property
    def trainer(self) -> Mapping[str, Any]:
        """The trainer's own state as it was saved."""
        return self._manifest.trainer

    def __getitem__(self, name: str) -> Tensor:
        """Assemble the weight from its pieces.

        Raises:
            CorruptCheckpointError: it has no pieces.
        """
        record = self._manifest.tensors[self._prefix + name]
        everything = Box(offsets=(0,) * len(record.shape), shape=record.shape)
        # The type is known from the first piece.
        whole: Tensor | None = None
        # Pieces cover the tensor without overlap, whatever layout saved them.
        for piece in record.pieces:
            with self._files.open(piece.file) as file:
                part = file.get_tensor(self._prefix + name)
            if whole is None:
                whole = torch.empty(record.shape, dtype=part.dtype)
            whole[piece.box.slices_within(everything)] = part
        if whole is None:
            raise CorruptCheckpointError(f"{name} has no pieces")
        return whole

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, without the optimizer's state."""
        # Optimizer state lies in the same files under other prefixes.
        names = (name for name in self._manifest.tensors if name.startswith(self._prefix))
        return (name.removeprefix(self._prefix) for name in names)

    def __len__(self) -> int:
        """Return the number of weights."""
        return sum(1 for _ in self)


def trained_with(files: StepFiles) -> dict[str, Any]:
    """Return the configuration of the run that saved a checkpoint, as JSON values. Empty: none.

    Raises:
        CorruptCheckpointError: its manifest does not verify.
    """
    return dict(saved_configuration(_manifest(files).trainer) or {})


def export_checkpoint(
    files: StepFiles,
    config: TrainerConfig,
    target: AnyPath,
    *,
    dtype: torch.dtype = torch.float32,
    average: bool = False,
    print_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Write the weights of a committed checkpoint to `target`.

    An interrupted export continues after the complete files. If the run began from a folder
    (`model_from`), its tokenizer, chat template, special tokens and generation settings are copied.
    A template file of the run (`data.chat_template`) replaces the folder's template. Classes of
    images get their names in the data.

    Args:
        files: files of the checkpoint.
        config: configuration of the run.
        target: the new folder.
        dtype: dtype of the written weights.
        average: whether to export the average of the weights.
        print_line: called with progress.

    Raises:
        CorruptCheckpointError: the checkpoint does not verify.
        ConfigError: its weights are of another model than `config`'s, its adapters were trained on
            another base, or the target is a folder that the run was started from.
        HuggingFaceError: the checkpoint is of another model, or transformers has no such model.
    """
    _refuse_own_folders(config, target)
    # Tokenizer and templates come from the folder in which the run began.
    like = None if config.folder is None else model_folder(config.folder)
    with whole_weights(files, config, average=average) as weights:
        # transformers splits and renames these weights, so they pass through memory as a whole.
        if config.model.family is Family.TRANSFORMERS:
            export_module(weights, config.model, target, dtype=dtype, like=like)
        else:
            export_hugging_face(
                weights,
                _long_enough(config),
                target,
                dtype=dtype,
                like=like,
                identity=_identity(files, config, dtype=dtype, average=average),
                class_names=_class_names(files),
                print_line=print_line,
            )
    # transformers would load adapters of an earlier export, on their base.
    for name in ADAPTER_FILES:
        remove_file(target / name)
    _write_template(config, target, print_line=print_line)


def _refuse_own_folders(config: TrainerConfig, target: AnyPath) -> None:
    """Raise ConfigError if the target is a folder that the run was started from."""
    begun = {
        "model_from": config.model_from,
        "config_from": config.config_from,
        "lora.adapters_from": None if config.lora is None else config.lora.adapters_from,
    }
    for field, place in begun.items():
        # Nothing is written to the Hub.
        if place is None or place.startswith(HUB_SCHEME):
            continue
        folder = model_folder(place)
        if isinstance(target, Path) and isinstance(folder, Path):
            same = target.resolve() == folder.resolve()
        else:
            same = str(target) == str(folder)
        if same:
            raise ConfigError(
                f"target: {target} is {field} of the run, which would be overwritten; name another"
                " folder"
            )


def _write_template(
    config: TrainerConfig, target: AnyPath, *, print_line: Callable[[str], None]
) -> None:
    """Write the run's chat template, if it was a file of its own."""
    template = Path(config.data.chat_template or "")
    if not template.is_absolute():
        return
    # The weights are already exported, so the export succeeds without this file.
    try:
        text = read_file(template, limit=MOST_TEMPLATE_BYTES)
    except OSError as error:
        print_line(f"data.chat_template: {template}: {error.strerror}; copy it to {TEMPLATE_FILE}")
    else:
        write_file(target / TEMPLATE_FILE, text)
        # The run used no other template, for records with tools either.
        remove_more_templates(target)


def _class_names(files: StepFiles) -> list[str]:
    """Return the names of classes by number, if the run's data had names for them."""
    # The state is read from a file, so types are checked.
    match _manifest(files).trainer.get("classes"):
        case [*names] if all(isinstance(name, str) for name in names):
            return [str(name) for name in names]
        case _:
            return []


def _identity(files: StepFiles, config: TrainerConfig, *, dtype: torch.dtype, average: bool) -> str:
    """Hash the checkpoint's content and the options of the export."""
    manifest = files.read_small(MANIFEST_DIGEST_FILE, limit=1024)
    # Everything that changes the output is part of the identity. An interrupted export resumes only
    # its own files.
    how = f"{dtype} {average} {config.lora} {config.model_from}"
    return hashlib.sha256(manifest + how.encode()).hexdigest()


@contextmanager
def whole_weights(
    files: StepFiles, config: TrainerConfig, *, average: bool = False
) -> Generator[Mapping[str, Tensor]]:
    """Provide the weights of a committed checkpoint, or their average, with adapters merged.

    They have our names. Each is read at every access.

    Args:
        files: files of the step.
        config: configuration of the run.
        average: whether to read the averaged weights.

    Raises:
        CorruptCheckpointError: it does not verify.
        ConfigError: they are of another model, or the adapters were trained on another base.
    """
    stored = CheckpointWeights(files, average=average)
    # A checkpoint of another model could have weights of equal names and shapes.
    refuse_other_model(stored.trainer, config.model)
    if not config.freezes and config.lora is None:
        yield stored
        return
    # The base is checked before it is opened, which for a bucket takes long.
    check_base(stored.trainer, config=config)
    with opened_base(config) as base:
        yield _OnBase(base, stored, lora=config.lora)


class _OnBase(Mapping[str, Tensor]):
    """The weights of a base, and what was learned of them or beside them."""

    def __init__(
        self, base: Mapping[str, Tensor], learned: Mapping[str, Tensor], *, lora: LoraConfig | None
    ) -> None:
        self._base, self._learned, self._lora = base, learned, lora

    def __getitem__(self, name: str) -> Tensor:
        # The base is read for each access and merged. Memory holds one weight at a time.
        if self._lora is not None:
            return merge_adapter(name, self._base[name], self._learned, config=self._lora)
        learned = self._learned.get(name)
        return self._base[name] if learned is None else learned

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def export_adapters(
    files: StepFiles,
    config: TrainerConfig,
    target: AnyPath,
    *,
    dtype: torch.dtype = torch.float32,
    average: bool = False,
    print_line: Callable[[str], None] = lambda _: None,
) -> None:
    """Write the adapters alone, as the library peft lays them out, with the run's chat template.

    Args:
        files: files of the step.
        config: configuration of the run.
        target: folder to write.
        dtype: dtype of the written tensors.
        average: whether to read the averaged weights.
        print_line: called with remarks.

    Raises:
        CorruptCheckpointError: the checkpoint does not verify.
        ConfigError: the run has no adapters or no base folder, the adapters have another base, or
            the target is a folder that the run was started from.
        HuggingFaceError: as `write_peft`.
    """
    # peft needs the name of a base. A base drawn from a seed exists nowhere else.
    if config.lora is None or config.model_from is None:
        raise ConfigError(
            "--adapter: only a run with lora and model_from has adapters of a base that others know"
        )
    _refuse_own_folders(config, target)
    stored = CheckpointWeights(files, average=average)
    refuse_other_model(stored.trainer, config.model)
    check_base(stored.trainer, config=config)
    from_hub = config.model_from.startswith(HUB_SCHEME)
    write_peft(
        {name: stored[name] for name in stored},
        target,
        lora=config.lora,
        model=config.model,
        base=model_folder(config.model_from),
        dtype=dtype,
        hub_base=HubPlace.parse(config.model_from) if from_hub else None,
    )
    _write_template(config, target, print_line=print_line)


def _long_enough(config: TrainerConfig) -> ModelConfig:
    """Return the model with a maximum length that includes the sequences it was trained on."""
    model = config.model
    if model.family is not Family.LLAMA:
        return model
    longest = max(model.max_positions, config.data.sequence_length)
    return replace(model, max_positions=longest)


def _manifest(files: StepFiles) -> Manifest:
    body = files.read_small(MANIFEST_FILE, limit=MAX_MANIFEST_BYTES)
    if files.read_small(MANIFEST_DIGEST_FILE, limit=1024) != digest_line(body):
        raise CorruptCheckpointError(f"{MANIFEST_FILE}: is not what {MANIFEST_DIGEST_FILE} says")
    return Manifest.parse(body)
