"""How many lines a client may say: a token bucket; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LINES_A_SECOND: Final = 50.0
"""A client of ours says two, and a few around a save."""
BURST_LINES: Final = 200.0


@dataclass(slots=True)
class LineAllowance:
    """Of one connection."""

    _left: float = BURST_LINES
    _at: float | None = None

    def take(self, *, now: float) -> bool:
        """Whether another line may be read at this time; it is taken then."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._left = min(BURST_LINES, self._left + passed * LINES_A_SECOND)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
