"""Look for circles of unused objects between cycles, so that no decision waits for it.

Python looks through new objects once there are many, and through all of them once a quarter is new.
For thousands of jobs that takes a tenth of a second and more, in the middle of a cycle. So new
objects are looked through after a cycle, and those that are left are set aside (`gc.freeze`): no
later look sees them. Unused ones are freed as usual, except circles. These are found once an hour,
when Python looks through everything.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

YOUNG_OBJECTS_LEFT: Final = 10_000
"""New objects above which Python looks for circles among them after a cycle (20 ms for 50,000)."""
_LOOKS_LEFT: Final = 10
"""Number of such looks after which their survivors are looked through and set aside."""
WHOLE_SECONDS: Final = 3600.0
"""Interval at which all objects are looked through: up to a second for 40,000 Pods."""


class GarbageCollector:
    """Looks for circles when no cycle runs.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._whole_at = clock() + WHOLE_SECONDS

    def collect(self) -> None:
        """Look through the objects whose turn it is."""
        if gc.get_count()[0] > YOUNG_OBJECTS_LEFT:
            gc.collect(0)
        if self._clock() >= self._whole_at:
            self._whole_at = self._clock() + WHOLE_SECONDS
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif gc.get_count()[1] > _LOOKS_LEFT:
            gc.collect(1)
            gc.freeze()
