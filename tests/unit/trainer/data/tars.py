"""Tars as WebDataset makes them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """Without compression, the members in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path
