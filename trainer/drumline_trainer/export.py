"""`export`: a checkpoint's weights as a folder that Hugging Face's transformers loads.

One process, a tensor at a time, whatever layout saved them. Every file's digest is checked first:
what does not verify is not exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    digest_line,
)
from drumline_trainer.checkpoint.shard_file import read_bounded, verify_file
from drumline_trainer.config import ModelConfig
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.parallelism.shards import Box


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of one checkpoint by name, read whole each time they are asked for."""

    def __init__(self, step_folder: Path) -> None:
        """Verify all of it. Raises CorruptCheckpointError."""
        body = read_bounded(step_folder / MANIFEST_FILE, limit=MAX_MANIFEST_BYTES)
        if read_bounded(step_folder / MANIFEST_DIGEST_FILE, limit=1024) != digest_line(body):
            raise CorruptCheckpointError(
                f"{MANIFEST_FILE}: is not what {MANIFEST_DIGEST_FILE} says"
            )
        self._folder = step_folder
        self._manifest = Manifest.parse(body)
        for name, record in self._manifest.files.items():
            verify_file(step_folder / name, record)

    def __getitem__(self, name: str) -> Tensor:
        """Put together from its pieces."""
        record = self._manifest.tensors[name]
        everything = Box(offsets=(0,) * len(record.shape), shape=record.shape)
        whole: Tensor | None = None
        for piece in record.pieces:
            with safe_open(self._folder / piece.file, framework="pt", device="cpu") as file:
                part: Tensor = file.get_tensor(name)
            if whole is None:
                whole = torch.empty(record.shape, dtype=part.dtype)
            whole[piece.box.slices_within(everything)] = part
        assert whole is not None  # noqa: S101 - a manifest without pieces does not parse
        return whole

    def __iter__(self) -> Iterator[str]:
        """Names, those of the optimizer's state too."""
        return iter(self._manifest.tensors)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._manifest.tensors)


def export_checkpoint(step_folder: Path, model: ModelConfig, target: Path) -> None:
    """Write the weights of a committed checkpoint, a `step-...` folder, to `target`.

    Raises:
        CorruptCheckpointError: it does not verify.
        HuggingFaceError: the checkpoint is not of this model, or that has no layout there.
    """
    export_hugging_face(StoredTensors(step_folder), model, target)
