"""A place where a rank waits for the test."""

from __future__ import annotations

import os
from pathlib import Path


class Gate:
    """A FIFO with one byte for each opening; opening never blocks, whoever comes first."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDWR)
        self.path = str(path)
        self.line = f"open({self.path!r}, 'rb', buffering=0).read(1)"

    def open(self) -> None:
        os.write(self._end, b"!")

    def close(self) -> None:
        os.close(self._end)
