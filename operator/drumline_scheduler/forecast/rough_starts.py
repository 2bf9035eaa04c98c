"""A rough forecast of every waiting gang's start: cheap, for whoever the simulated future lacks.

The simulated one looks at the first in line, and takes a while. Everybody else, and whoever has
just come, starts when the GPUs of those before have been given back as often as they are wanted:

    wait = GPUs wanted by the line up to and including this gang / GPUs given back in a second

counted from the latest simulated start before it in line. It says little about a single gang (a
queue of its own may be served sooner, a large one later), so its band is wide; what is learned of
its errors (`correction`) moves it. Where most GPUs are held by gangs of unknown length the
band is that of such lengths.

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
"""How many times longer than expected a wait may be, nine times in ten."""
UNKNOWN_WIDTH: Final = 13.0
"""The same behind gangs of unknown length, as in `forecast`."""
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
"""Waits that end as other jobs end. All other reasons need an event that nobody can date: a change
of the job or of the cluster, a release by hand, an autoscaler, or a predecessor."""


def rough_starts(
    *,
    snapshot: Snapshot,
    waiting: Mapping[str, Gang],
    line: Iterable[Blocked],
    known: Mapping[str, ExpectedStart],
    now: float,
    asked: Container[str] | None = None,
) -> list[ExpectedStart]:
    """The starts of those in line that have no simulated one.

    Args:
        snapshot: the cluster.
        waiting: who waits, by uid.
        line: who does not start in this cycle and why, in the order of the line.
        known: simulated starts by uid.
        now: seconds since the epoch.
        asked: uids of those whose starts are wanted; None: of all.
    """
    rate, width = _given_back(snapshot, now=now)
    starts: list[ExpectedStart] = []
    since, wanted = now, 0
    for blocked in line:
        gang = waiting.get(blocked.uid)
        if gang is None or blocked.reason not in _STARTS_BY_ITSELF:
            continue
        simulated = known.get(gang.uid)
        if simulated is not None and simulated.p50_at is not None:
            if simulated.p50_at > since:
                since, wanted = simulated.p50_at, 0
            continue
        wanted += max(1, gang.gpus)
        if rate <= 0.0 or (asked is not None and gang.uid not in asked):
            continue  # without a rate nothing runs: what it waits for is no end
        wait = min(FARTHEST_SECONDS / width, max(LEAST_SECONDS, since - now + wanted / rate))
        starts.append(
            ExpectedStart(key=gang.key, uid=gang.uid, p50_at=now + wait, p90_at=now + width * wait)
        )
    return starts


def _given_back(snapshot: Snapshot, *, now: float) -> tuple[float, float]:
    """GPUs that running gangs give back in a second, each its own once in the time it has left.

    A gang with a limit is counted with half of what is left of it: few use their limits up. One of
    unknown length runs as long again as it has, or `USUAL_SECONDS` if that is longer.

    Returns:
        The rate, and the width of the band.
    """
    rate, gpus, unknown = 0.0, 0, 0
    for held in snapshot.admitted:
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
