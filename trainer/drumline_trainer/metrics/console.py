"""Lines of text for the user. On a terminal, progress lines replace each other."""

from __future__ import annotations

from typing import TextIO

_BACK, _CLEAR = "\r", "\x1b[K"


class Console:
    """The console of one rank.

    Args:
        stream: standard output, usually.
        prefix: before every line, such as `[rank 3] `; lines of several ranks share a terminal, so
            with a prefix no line is replaced.
    """

    def __init__(self, stream: TextIO, *, prefix: str = "") -> None:
        self._stream = stream
        self._prefix = prefix
        self._in_place = stream.isatty() and not prefix
        self._open = False
        """The cursor is at the end of a progress line."""

    def line(self, text: str) -> None:
        """Print a line that stays."""
        before, self._open = "\n" if self._open else "", False
        self._write(f"{before}{self._prefix}{text}\n")

    def progress(self, text: str) -> None:
        """Print a line that the next progress line replaces, on a terminal."""
        if not self._in_place:
            self.line(text)
            return
        self._open = True
        self._write(f"{_BACK}{text}{_CLEAR}")

    def close(self) -> None:
        """End an open progress line."""
        if self._open:
            self._open = False
            self._write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
