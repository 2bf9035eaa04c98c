"""Which steps are profiled: a configured window, and windows on demand. No torch.

On demand: `touch profile-now` in the metrics folder. Every rank reads the file's time at its logged
steps, so all begin at the same step without communication; a rank that read it just before the
touch begins one logged step later. The file is never removed: touch it again for another window.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from drumline_trainer.config import ProfileConfig

REQUEST_FILE = "profile-now"


class WindowEvent(StrEnum):
    """What happens to the window at a step boundary."""

    NONE = "none"
    BEGIN = "begin"
    END = "end"


class Window:
    """The profiling windows of one rank."""

    def __init__(self, config: ProfileConfig, *, folder: Path | None, look_every: int) -> None:
        self._start = config.start_step
        self._steps = config.steps
        self._file = None if folder is None else folder / REQUEST_FILE
        self._look_every = look_every
        self._seen = self._touched()
        self._ends: int | None = None
        """Number of finished steps at which the open window ends."""

    def at(self, step: int) -> WindowEvent:
        """Call this after every step, and once before the first."""
        asked = step % self._look_every == 0 and self._asked()
        if self._ends is not None:
            if step < self._ends:
                return WindowEvent.NONE
            self._ends = None
            return WindowEvent.END
        if asked or self._configured(step):
            self._ends = step + self._steps
            return WindowEvent.BEGIN
        return WindowEvent.NONE

    def _configured(self, step: int) -> bool:
        """True once; a run that resumes within the window profiles as many steps."""
        if self._start is None or not self._start <= step < self._start + self._steps:
            return False
        self._start = None
        return True

    def _asked(self) -> bool:
        before, self._seen = self._seen, self._touched()
        return self._seen > before

    def _touched(self) -> int:
        """When the file was touched, in nanoseconds; 0 where there is none."""
        if self._file is None:
            return 0
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0
