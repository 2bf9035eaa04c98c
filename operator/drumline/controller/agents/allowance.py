"""Limit the requests of one gang's watch with a token bucket. Pure.

A leader whose answers always carry news is polled again at once. Each answer is tenant input and
costs the operator about a millisecond. A recovery needs many requests for a few seconds. An image
that invents news, or reports all its members as silent, would need them forever. The bucket holds
enough tokens for a recovery and refills slowly, so a flooding job uses only its own share.
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_REQUESTS = 100
BURST_REQUESTS_PER_MEMBER = 4
"""A verdict on silent members takes a request to each of them."""
REFILL_SECONDS = 20.0
"""Time to refill an empty bucket. It takes longer when many gangs are watched."""
GANGS_AT_FULL_RATE = 50
"""Number of gangs above which all gangs share the total rate of this number.

The shared rate still covers the long polls of a gang without news. Those polls also take longer
when more gangs are watched.
"""


@dataclass(slots=True)
class RequestAllowance:
    """Token bucket of one gang. It starts full.

    Example: one member, few gangs. The first 104 requests are made as fast as the answers arrive.
    After them, the bucket refills 5.2 tokens per second.
    """

    spent: float = 0.0
    at: float = 0.0

    def delay(self, now: float, *, members: int, gangs: int) -> float:
        """Return the seconds until the next request may be made. 0.0 means now.

        Args:
            now: Unix time in seconds.
            members: size of the gang.
            gangs: number of watched gangs.
        """
        capacity, rate = self._refill(now, members=members, gangs=gangs)
        return max(0.0, (self.spent - capacity + 1.0) / rate)

    def take(self, requests: int, now: float, *, members: int, gangs: int) -> None:
        """Pay for requests that were made. Overdrawn tokens lengthen the next delay.

        Args:
            requests: number of requests.
            now: Unix time in seconds.
            members: size of the gang.
            gangs: number of watched gangs.
        """
        self._refill(now, members=members, gangs=gangs)
        self.spent += requests

    def _refill(self, now: float, *, members: int, gangs: int) -> tuple[float, float]:
        # A verdict on silent members takes one request to each of them, so capacity grows with the
        # gang.
        capacity = float(BURST_REQUESTS + BURST_REQUESTS_PER_MEMBER * members)
        rate = capacity / REFILL_SECONDS * min(1.0, GANGS_AT_FULL_RATE / max(1, gangs))
        # Refill first. `spent` may exceed `capacity`: `take` never refuses, `delay` makes up for
        # it.
        self.spent = max(0.0, self.spent - (now - self.at) * rate)
        self.at = now
        return capacity, rate
