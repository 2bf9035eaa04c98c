"""How many requests the watch of one gang may make: a token bucket; pure.

A leader whose answers always have news is asked again at once, and each answer is tenant input that
costs the operator about a millisecond. A recovery needs many requests for a few seconds; an image
that makes up news, or names all its members silent, would need them for ever. The bucket holds
enough for a recovery and refills slowly, so that a job that floods spends its own share only.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_REQUESTS = 100
BURST_REQUESTS_PER_MEMBER = 4
"""A verdict on silent members takes a request to each of them."""
REFILL_SECONDS = 20.0
"""An empty bucket is full again after so long, or longer where many gangs are watched."""
GANGS_AT_FULL_RATE = 50
"""Beyond it the gangs share the rate of so many. At that rate the long poll of a gang without news,
which takes longer too the more gangs are watched, is still paid for."""


@dataclass(slots=True)
class RequestAllowance:
    """The bucket of one gang; it starts full.

    Example: one member, few gangs. 104 requests are made as fast as the answers come; after them
    the bucket pays for 5.2 requests a second.
    """

    spent: float = 0.0
    at: float = 0.0

    def delay(self, now: float, *, members: int, gangs: int) -> float:
        """Seconds until the next request may be made; 0.0: at once."""
        capacity, rate = self._refill(now, members=members, gangs=gangs)
        return max(0.0, (self.spent - capacity + 1.0) / rate)

    def take(self, requests: int, now: float, *, members: int, gangs: int) -> None:
        """Pay for requests that were made; more than were left lengthen the next delay."""
        self._refill(now, members=members, gangs=gangs)
        self.spent += requests

    def _refill(self, now: float, *, members: int, gangs: int) -> tuple[float, float]:
        capacity = float(BURST_REQUESTS + BURST_REQUESTS_PER_MEMBER * members)
        rate = capacity / REFILL_SECONDS * min(1.0, GANGS_AT_FULL_RATE / max(1, gangs))
        self.spent = max(0.0, self.spent - (now - self.at) * rate)
        self.at = now
        return capacity, rate
