"""Let a gang that was preempted often evict no gang for a while. Pure: no I/O, no clock.

No chain of preemptions returns to its beginning (`quota.preemption_policy`). But gangs start in
between. If these borrow, their queues may be reclaimed from again. So two gangs that need the same
nodes can evict each other for ever.

Example: queues x and y with 4 GPUs of quota each, in a cohort of 10. Only one node has room for a
(x, 4 GPUs) or b (y, 4 GPUs). a reclaims the node while a low job of y borrows. Then a low job of x
borrows elsewhere, and b reclaims the node, and so on.

A gang that was preempted three times within an hour pauses for a minute after the last time, and
twice as long after each further one. It may use free capacity meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OFTEN: Final = 3
"""Preemptions within `WINDOW_SECONDS` after which a gang pauses."""
WINDOW_SECONDS: Final = 3600.0
FIRST_PAUSE_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 3600.0


def pause_of(preempted_at: Sequence[float], *, now: float) -> str:
    """Return why a gang evicts no other gang now, or '' if it was not preempted often.

    Args:
        preempted_at: times of its preemptions for other gangs.
        now: time of the cycle, on the same clock.
    """
    if len(preempted_at) < OFTEN:
        return ""
    last = max(preempted_at)
    times = sum(at > last - WINDOW_SECONDS for at in preempted_at)
    if times < OFTEN:
        return ""
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (times - OFTEN))
    if last + pause <= now:
        return ""
    return f"it was preempted {times} times within an hour, so it pauses for {pause:g} s"
