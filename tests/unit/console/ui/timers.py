"""A timer that goes off when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Timer:
    seconds: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(slots=True)
class Timers:
    """Those that are set, as `Later`."""

    running: list[Timer] = field(default_factory=list)

    def __call__(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.running.append(Timer(seconds, call))
        return self.running[-1]

    def go_off(self) -> None:
        running, self.running = self.running, []
        for timer in running:
            if not timer.cancelled:
                timer.call()
