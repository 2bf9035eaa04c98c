"""Reading checkpoints in tests: whole tensors put together from the files, ranks forgotten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from drumline_trainer.checkpoint.manifest import Manifest


def whole_tensors(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Global tensors of a committed checkpoint by name."""
    manifest = Manifest.parse((folder / "manifest.json").read_bytes())
    files = {name: load_file(folder / name) for name in manifest.files}
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, record in manifest.tensors.items():
        whole = np.full(record.shape, np.nan, dtype=np.float32)
        for piece in record.pieces:
            index = tuple(
                slice(o, e) for o, e in zip(piece.box.offsets, piece.box.ends, strict=True)
            )
            whole[index] = files[piece.file][name]
        tensors[name] = whole
    return tensors


def trainer_state(folder: Path) -> dict[str, object]:
    """What the manifest holds beside tensors."""
    return dict(Manifest.parse((folder / "manifest.json").read_bytes()).trainer)


def same_bits(
    left: dict[str, npt.NDArray[np.float32]], right: dict[str, npt.NDArray[np.float32]]
) -> bool:
    """Whether two sets of tensors are equal to the last bit."""
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )
