"""A rate limit with bursts; pure (the caller passes the time)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class TokenBucket:
    """A burst of tokens, then a constant number per second."""

    per_second: float
    burst: float
    _left: float = field(init=False)
    _at: float | None = None

    def __post_init__(self) -> None:
        """Fill the bucket."""
        self._left = self.burst

    def take(self, *, now: float) -> bool:
        """Take a token and return True if there is one at this time."""
        self._fill(now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def charge(self, amount: float, *, now: float) -> None:
        """Subtract an amount that was used already. The balance may become negative."""
        self._fill(now)
        self._left -= amount

    def _fill(self, now: float) -> None:
        # max: clocks of callers may be a little older than the last one.
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._left = min(self.burst, self._left + passed * self.per_second)
