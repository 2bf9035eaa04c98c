"""Cuts a stream of chunks into lines, whatever their length, within a bound of memory.

A watch sends one JSON document a line. Chunks end anywhere; a line longer than the bound is not
kept: it becomes one `Oversized`, and the lines after it are read as if it had not been there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 16 << 20
"""Above what etcd stores for one object (1.5 MiB) by so much that only a fault exceeds it.

etcd stores pods as protobuf. JSON needs up to six bytes for one byte of a text (`<` is sent as
`\\u003c`), and more for short fields. GPUs of a pod whose line is skipped would not be counted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversized:
    """A line that was thrown away.

    Attributes:
        size_bytes: How long it was.
    """

    size_bytes: int


class WatchLineSplitter:
    """Feed it chunks; it gives back the lines that have ended.

    Args:
        max_line_bytes: The longest line that is kept, its end not counted.
    """

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """Return the lines that end in this chunk, without line ends and empty lines."""
        # The part after the last line end is incomplete. It waits for the next chunk.
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | Oversized] = []
        for piece in ended:
            self._add(piece)
            # An empty line is a keep-alive of some proxies, so it is not a document.
            if self._size:
                lines.append(self._take())
        self._add(rest)
        return lines

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max:
            # The size still counts, but the bytes go: a line of 1 GB must not be held.
            self._parts.clear()
        elif piece:
            self._parts.append(piece)

    def _take(self) -> bytes | Oversized:
        size, self._size = self._size, 0
        if size > self._max:
            return Oversized(size_bytes=size)
        line = b"".join(self._parts)
        self._parts.clear()
        return line
