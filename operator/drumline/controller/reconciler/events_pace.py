"""Hand out the times at which events of pods may be read, over all jobs.

The API server reads all events of the namespace for each request. On a busy server many pods start
late, and their reads would make it busier. So the pace follows the time that a read takes.
"""

from __future__ import annotations

from typing import Final

LEAST_SECONDS: Final = 0.2
"""Least time between two reads."""
MOST_SECONDS: Final = 5.0
"""Most time between two reads, so that a slow answer delays no explanation for long."""
PAUSE: Final = 10.0
"""Time between two reads, as a multiple of the time that the last one took."""


class EventsPace:
    """The times of the reads, in the order of asking."""

    def __init__(self) -> None:
        self._next = 0.0
        self._seconds = LEAST_SECONDS

    def slot(self, now: float) -> float:
        """Return the time of the next read, and hand it out only once. Monotonic seconds."""
        slot = max(now, self._next)
        self._next = slot + self._seconds
        return slot

    def took(self, seconds: float) -> None:
        """Note how long a read took."""
        self._seconds = min(MOST_SECONDS, max(LEAST_SECONDS, PAUSE * seconds))
