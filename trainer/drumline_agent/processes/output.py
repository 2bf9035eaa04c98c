"""Lines out of pipes: the output of a rank, and its messages.

Each rank has one pipe for stdout and stderr together, which keeps their order. Lines are cut at
MAX_LINE_BYTES and bytes that are not UTF-8 are replaced: a rank may print anything.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from drumline_agent.base.events import write_line

MAX_LINE_BYTES = 16 * 1024
CUT = b" [cut]"
KEPT_LINES = 20
PIPE_BYTES = 64 * 1024
"""Capacity of a Linux pipe: one read of this size empties it."""


class PipeLineSplitter:
    """Pure: chunks in, whole lines out; the rest of an overlong line is dropped."""

    def __init__(self) -> None:
        self._pending = b""
        self._dropping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by `chunk`, without their line feeds."""
        *ended, rest = (self._pending + chunk).split(b"\n")
        lines: list[bytes] = []
        # A cut line was printed when it got too long. Its end is dropped.
        for line in ended:
            if not self._dropping:
                lines.append(_cut(line))
            self._dropping = False
        # Print the beginning now, since the end may never come, and bound the memory.
        if len(rest) > MAX_LINE_BYTES and not self._dropping:
            lines.append(_cut(rest))
            self._dropping = True
        self._pending = b"" if self._dropping else rest
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if no line feed ended it."""
        rest, self._pending = self._pending, b""
        return [rest] if rest else []


def _cut(line: bytes) -> bytes:
    return line if len(line) <= MAX_LINE_BYTES else line[:MAX_LINE_BYTES] + CUT


class LineReader(asyncio.Protocol):
    """Hands each line of a pipe to `on_line`; `ended` is done when the last writer closed it."""

    def __init__(
        self, on_line: Callable[[bytes], None], *, splitter: PipeLineSplitter | None = None
    ) -> None:
        self._on_line = on_line
        self._splitter = PipeLineSplitter() if splitter is None else splitter
        self._transport: asyncio.BaseTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the open pipe."""
        self._transport = transport

    def drain(self) -> None:
        """Read what is in the pipe now: everything that an ended process has written."""
        if self._transport is None or self._transport.is_closing():
            return
        # Directly, because the event loop may deliver the exit before the last bytes.
        with suppress(BlockingIOError):
            self.data_received(os.read(self._transport.get_extra_info("pipe").fileno(), PIPE_BYTES))

    def finish(self) -> None:
        """Pass on everything that an ended process has written, also a line without a line feed."""
        self.drain()
        for line in self._splitter.finish():
            self._on_line(line)

    def close(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Pass on the lines that these bytes complete."""
        for line in self._splitter.feed(data):
            self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Finish after the last writer has closed the pipe."""
        self.finish()
        if not self.ended.done():
            self.ended.set_result(None)


async def open_line_pipe(
    on_line: Callable[[bytes], None], *, splitter: PipeLineSplitter | None = None
) -> tuple[LineReader, int]:
    """Open a pipe whose lines go to `on_line`. Return its reader and the descriptor to write to."""
    read_end, write_end = os.pipe()
    reader = LineReader(on_line, splitter=splitter)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: reader, os.fdopen(read_end, "rb", buffering=0)
    )
    return reader, write_end


class PrefixedOutput:
    """Prints lines under a prefix, or under none where it is empty, and keeps the last ones."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"[{prefix}] ".encode() if prefix else b""
        self._last: deque[str] = deque(maxlen=KEPT_LINES)

    def rename(self, prefix: str) -> None:
        """Print under another prefix from now on."""
        self._prefix = f"[{prefix}] ".encode()

    def line(self, line: bytes, *, keep: bool = True) -> None:
        """Print one line, and keep it as one of the last ones."""
        text = line.decode(errors="replace").rstrip("\r")
        if keep and text.strip():
            self._last.append(text)
        write_line(self._prefix + text.encode())

    @property
    def last_lines(self) -> list[str]:
        """The last lines that were not blank, oldest first; at most KEPT_LINES."""
        return list(self._last)

    @property
    def last_line(self) -> str:
        """The last line that was not blank, or the empty string."""
        return self._last[-1].strip() if self._last else ""
