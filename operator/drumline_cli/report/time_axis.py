"""The time axis of a chart: where a moment is drawn, and which moments get a tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_MAX_TICKS: Final = 8
_DAY: Final = 86_400
_EPOCH_BEGINS: Final = 1e8
"""Times above three years are dates, not durations."""
_STEPS_SECONDS: Final = (
    *(step * 10.0**power for power in range(-3, 1) for step in (1, 2, 5)),
    *(10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(_DAY * days for days in (1, 2, 7, 14, 28, 84, 364)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """Seconds from `begins` to `begins + span`, drawn from `left` over `width` units."""

    begins: float
    span: float
    left: float
    width: float

    @property
    def per_second(self) -> float:
        """Units of width for one second."""
        return self.width / max(self.span, 0.001)

    def __call__(self, moment: float) -> float:
        """Return the position of a time, within the picture."""
        return self.left + min(max((moment - self.begins) * self.per_second, 0.0), self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """One line of an axis."""

    x: float
    label: str


def ticks(axis: TimeAxis) -> list[AxisTick]:
    """Return at most nine ticks at round times. Labels are UTC, or seconds on a relative axis."""
    step = next((s for s in _STEPS_SECONDS if axis.span / s <= _MAX_TICKS), axis.span)
    if step <= 0:
        return []
    first = math.ceil(axis.begins / step)
    last = math.floor((axis.begins + axis.span) / step)
    moments = [number * step for number in range(first, last + 1)]
    return [AxisTick(x=axis(moment), label=_label(moment, axis, step=step)) for moment in moments]


def _label(moment: float, axis: TimeAxis, *, step: float) -> str:
    if axis.begins < _EPOCH_BEGINS:
        return f"{moment:.6g} s"
    pattern = "%H:%M:%S" if step < 60 else "%H:%M" if step < _DAY else "%b %d"
    if step < _DAY < axis.span:
        pattern = "%b %d %H:%M"
    return datetime.fromtimestamp(moment, tz=UTC).strftime(pattern)
