"""How much of something there may be in a time; pure (the clock is the caller's)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class TokenBucket:
    """A burst, then so many a second."""

    per_second: float
    burst: float
    _left: float = field(init=False)
    _at: float | None = None

    def __post_init__(self) -> None:
        """It begins full."""
        self._left = self.burst

    def take(self, *, now: float) -> bool:
        """Whether there is a token at this time; it is taken then."""
        self._fill(now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def charge(self, amount: float, *, now: float) -> None:
        """Take what was used up already, even if there is not so much: it is missing later."""
        self._fill(now)
        self._left -= amount

    def _fill(self, now: float) -> None:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._left = min(self.burst, self._left + passed * self.per_second)
