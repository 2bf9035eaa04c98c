r"""Lines of a program that thinks it writes to a terminal: a progress bar returns to its start.

    b"10%\r20%\r{'loss': 2}\n"  ->  b"10%\r", b"20%\r", b"{'loss': 2}"

Without this a bar of hours would be a single line, which is cut at `output.MAX_LINE_BYTES`.
"""

from __future__ import annotations

from typing import Final

from drumline_agent.processes.output import PipeLineSplitter

REDRAWN: Final = b"\r"
"""Ends a line that the next one is written over."""


class TerminalLineSplitter(PipeLineSplitter):
    """Splits at carriage returns too, and leaves them at the end of the line."""

    def __init__(self) -> None:
        super().__init__()
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by `chunk`, without their line feeds."""
        text = self._rest + chunk
        # The last byte may be the first half of a line end, whose other half has not come yet.
        self._rest = text[-1:] if text.endswith(REDRAWN) else b""
        whole = text[: len(text) - len(self._rest)].replace(b"\r\n", b"\n")
        marked = whole.replace(REDRAWN, REDRAWN + b"\n")
        return [line for line in super().feed(marked) if line != REDRAWN]

    def finish(self) -> list[bytes]:
        """Return the last line if no line feed ended it."""
        self._rest = b""
        return super().finish()
