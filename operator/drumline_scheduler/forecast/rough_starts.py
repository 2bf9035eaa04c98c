"""A rough, cheap forecast for waiting gangs without a simulated start.

The simulation covers the head of the line, and takes a while. For other gangs, and for gangs that
have just come, the wait is estimated from the rate at which running gangs release GPUs:

    wait = GPUs wanted by the line up to and including this gang / GPUs released in a second

It counts from the latest simulated start before the gang in line. The estimate is rough for a
single gang: its queue may be served sooner, and a large gang later. So its band is wide, and
`correction` moves it by what is learned from its errors. If gangs of unknown length hold most GPUs,
the band is that of such lengths.

Cost: O(running gangs + waiting gangs), without any cycle.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from drumline_scheduler.decisions import Blocked, BlockReason
from drumline_scheduler.forecast.expected_starts import (
    FARTHEST_SECONDS,
    USUAL_SECONDS,
    ExpectedStart,
)
from drumline_scheduler.model import Gang, Snapshot
from drumline_scheduler.queueing.expected_ends import LEAST_SECONDS, expected_end

WIDTH: Final = 4.0
"""Ratio of the p90 wait to the expected wait."""
UNKNOWN_WIDTH: Final = 13.0
"""Ratio behind gangs of unknown length, as in `expected_starts`."""
_STARTS_BY_ITSELF: Final = frozenset(
    {
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        BlockReason.WAITING_FOR_VICTIMS,
        BlockReason.BEHIND_HIGHER_PRIORITY,
        BlockReason.WOULD_DELAY_RESERVATION,
        BlockReason.USER_LIMIT,
        BlockReason.SWEEP_LIMIT,
        BlockReason.BACKING_OFF,
    }
)
"""Waits that end when other jobs end. All other reasons need an event whose time is unknown: a
change of the job or of the cluster, a release by hand, an autoscaler, or a predecessor."""


def rough_starts(
    *,
    snapshot: Snapshot,
    waiting: Mapping[str, Gang],
    line: Iterable[Blocked],
    known: Mapping[str, ExpectedStart],
    now: float,
    asked: Container[str] | None = None,
) -> list[ExpectedStart]:
    """Return the starts of gangs in line that have no simulated one.

    Args:
        snapshot: the cluster.
        waiting: waiting gangs by uid.
        line: gangs that do not start in this cycle and why, in the order of the line.
        known: simulated starts by uid.
        now: seconds since the epoch.
        asked: uids of the gangs whose starts are wanted; None: all.
    """
    rate, width = _given_back(snapshot, now=now)
    starts: list[ExpectedStart] = []
    since, wanted = now, 0
    for blocked in line:
        gang = waiting.get(blocked.uid)
        if gang is None or blocked.reason not in _STARTS_BY_ITSELF:
            continue
        # A simulated start restarts the count: the line before it is served by then.
        simulated = known.get(gang.uid)
        if simulated is not None and simulated.p50_at is not None:
            if simulated.p50_at > since:
                since, wanted = simulated.p50_at, 0
            continue
        wanted += max(1, gang.gpus)
        if rate <= 0.0 or (asked is not None and gang.uid not in asked):
            continue  # without a rate nothing runs, so no end can be awaited
        wait = min(FARTHEST_SECONDS / width, max(LEAST_SECONDS, since - now + wanted / rate))
        starts.append(
            ExpectedStart(key=gang.key, uid=gang.uid, p50_at=now + wait, p90_at=now + width * wait)
        )
    return starts


def _given_back(snapshot: Snapshot, *, now: float) -> tuple[float, float]:
    """Return the GPUs that running gangs release in a second, and the width of the band.

    Each gang releases its GPUs once in its remaining time. A gang with a limit counts with half of
    its remaining limit, because few gangs use up their limits. A gang of unknown length runs as
    long again as it has, or for `USUAL_SECONDS` if that is longer.
    """
    rate, gpus, unknown = 0.0, 0, 0
    for held in snapshot.admitted:
        # A foreign pod without a known end may stay for ever.
        if held.is_foreign and held.ends_at is None:
            continue
        left = expected_end(held=held, now=now) - now
        if held.ends_at is None and held.gang.max_runtime_seconds is not None:
            left /= 2.0
        elif held.ends_at is None:
            left = max(USUAL_SECONDS, left)
            unknown += held.gpus
        gpus += held.gpus
        rate += held.gpus / max(LEAST_SECONDS, left)
    return rate, UNKNOWN_WIDTH if 2 * unknown > gpus else WIDTH
