"""What of a mapped file is in memory."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def resident(tensor: Tensor) -> int:
    """Bytes that this process has in memory of the file that a tensor lies in."""
    address = tensor.untyped_storage().data_ptr()
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            result = next(each for each in lines if each.startswith("Rss:"))
            return int(result.split()[1]) * 1024
    raise AssertionError("no such mapping")
