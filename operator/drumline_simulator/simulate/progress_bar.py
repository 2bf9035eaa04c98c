"""Show the progress of a simulation as one line that is redrawn."""

from __future__ import annotations

import time
from typing import Final, Self, TextIO

from drumline_cli.formatting import count, duration
from drumline_simulator.engine.simulation import SimulationProgress

_WIDTH: Final = 28
_EVERY_SECONDS: Final = 0.2


class ProgressBar:
    """Draws ticks on a screen, at most a few times per second.

    Without a screen it draws nothing.
    """

    def __init__(self, *, title: str, screen: TextIO | None) -> None:
        self._title = title
        self._screen = screen
        self._next_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.write("\r\033[K")
            self._screen.flush()

    def __call__(self, tick: SimulationProgress) -> None:
        """Draw one tick, unless the last one was drawn very recently."""
        if self._screen is None or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _EVERY_SECONDS
        self._screen.write(f"\r\033[K{line(tick, title=self._title)}")
        self._screen.flush()


def line(tick: SimulationProgress, *, title: str) -> str:
    """Return one tick in words."""
    full = round(_WIDTH * tick.ended / tick.jobs)
    bar = "█" * full + "·" * (_WIDTH - full)
    return (
        f"{title}  {bar}  {count(tick.ended)} of {count(tick.jobs)} jobs ended,"
        f" {count(tick.running)} running, {count(tick.waiting)} pending; {duration(tick.now)}"
        " simulated"
    )
