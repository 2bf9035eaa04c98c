"""What the demo prints: lines with the time since its start, and one live line on a terminal.

The live line is repainted in place and never part of the output: where standard output is no
terminal (a file, CI) there is none, and no control character is written; a long silence then gets
a line of its own, so that nobody wonders whether it hangs.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_REPAINT_SECONDS = 1.0
_SILENCE_SECONDS = 30.0


class Screen:
    """Thread-safe: log followers and the ticker print too."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._live = ""
        self._last_line = self._started

    def plain(self, line: str = "") -> None:
        """A line as it is."""
        with self._lock:
            self._write(line)

    def say(self, line: str) -> None:
        """A line with the minutes and seconds since the start."""
        with self._lock:
            self._write(f"{self.clock()}  {line}")

    def title(self, line: str) -> None:
        """The beginning of a part."""
        with self._lock:
            self._write("")
            self._write(f"\033[1m{line}\033[0m" if self._terminal else line)

    def live(self, text: str) -> None:
        """What is going on right now; empty for nothing."""
        with self._lock:
            if text != self._live:
                self._live = text
                self._paint()

    def clock(self) -> str:
        """Time since the start, as 1:05."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes:>2}:{seconds:02d}"

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Something that takes long; a terminal sees the seconds pass."""
        began = time.monotonic()
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(what, began, ended), daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()
            self.live("")

    def _tick(self, what: str, began: float, ended: threading.Event) -> None:
        while not ended.wait(_REPAINT_SECONDS):
            now = time.monotonic()
            self.live(f"{what}: {now - began:.0f} s")
            if not self._terminal and now - self._last_line > _SILENCE_SECONDS:
                self.say(f"still at work: {what}, {now - began:.0f} s so far")

    def _write(self, line: str) -> None:
        self._erase()
        sys.stdout.write(f"{line}\n")
        self._last_line = time.monotonic()
        self._paint()
        sys.stdout.flush()

    def _paint(self) -> None:
        if not self._terminal:
            return
        self._erase()
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\033[2m{self._live[:width]}\033[0m" if self._live else "")
        sys.stdout.flush()

    def _erase(self) -> None:
        if self._terminal:
            sys.stdout.write("\r\033[K")
