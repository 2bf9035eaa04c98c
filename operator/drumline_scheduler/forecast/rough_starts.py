"""Estimate the starts of gangs that no simulated future contains, without any cycle.

The simulated forecast contains the first gangs of each line, and it takes a while. All others, and
gangs that have just come, start when their line has been given enough GPUs:

    wait = GPUs requested in the line up to and including the gang / GPUs returned per second

This is counted from the latest simulated start before it in its line. A gang that waits for quota
counts gangs of its root queue (`lines`) and GPUs that these hold in the pool. A gang that waits for
GPUs counts all gangs that wait for GPUs of the pool, and GPUs of all holders. Foreign pods without
an end return nothing. A gang has no estimate if its line gets no GPUs back.

The estimate says little about a single gang, so its band is wide. The errors of earlier estimates
correct it (`correction`).

Cost: O(running gangs + waiting gangs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.decisions import Blocked, BlockReason
from drumline_scheduler.forecast.expected_starts import (
    FARTHEST_SECONDS,
    USUAL_SECONDS,
    ExpectedStart,
)
from drumline_scheduler.forecast.isolation import OnFault, forecast_around_faults, ignored
from drumline_scheduler.forecast.lines import LineKey, Lines
from drumline_scheduler.model import Admitted, Gang, Snapshot
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
_WAITS_FOR_QUOTA: Final = frozenset(
    {BlockReason.QUOTA_EXHAUSTED, BlockReason.USER_LIMIT, BlockReason.SWEEP_LIMIT}
)
"""Waits for jobs of the same root queue. All others wait for any holder of the pool."""
_EVERYBODY: Final = ""
"""Stands for the root queue where all gangs of a pool count."""


def rough_starts(
    *,
    snapshot: Snapshot,
    waiting: Mapping[str, Gang],
    line: Iterable[Blocked],
    known: Mapping[str, ExpectedStart],
    now: float,
    asked: Container[str] | None = None,
    on_fault: OnFault = ignored,
) -> list[ExpectedStart]:
    """Return the starts of those in line that have no simulated one.

    A waiting gang on which the estimate raises is left out. A running one counts as staying.

    Args:
        snapshot: the cluster.
        waiting: gangs that wait, by uid.
        line: gangs that do not start in this cycle and why, in scheduling order.
        known: simulated starts by uid.
        now: seconds since the epoch.
        asked: uids of the wanted starts; None: of all.
        on_fault: takes each exception on one gang.

    Raises:
        Exception: it raises on more gangs than `isolation.MOST_FAULTS`, or whatever gangs are left
            out.
    """
    blocked = tuple(line)

    def attempt(snapshot: Snapshot, pending: tuple[Gang, ...]) -> list[ExpectedStart]:
        left = {gang.uid: gang for gang in pending}
        return _rough_starts(
            snapshot=snapshot, waiting=left, line=blocked, known=known, now=now, asked=asked
        )

    return forecast_around_faults(
        attempt, snapshot=snapshot, pending=tuple(waiting.values()), on_fault=on_fault
    )


def _rough_starts(
    *,
    snapshot: Snapshot,
    waiting: Mapping[str, Gang],
    line: Iterable[Blocked],
    known: Mapping[str, ExpectedStart],
    now: float,
    asked: Container[str] | None,
) -> list[ExpectedStart]:
    lines = Lines(snapshot)
    returns = _returned(snapshot, lines=lines, now=now)
    since: dict[LineKey, float] = {}
    wanted: Counter[LineKey] = Counter()
    starts: list[ExpectedStart] = []
    for blocked in line:
        gang = waiting.get(blocked.uid)
        if gang is None or blocked.reason not in _STARTS_BY_ITSELF:
            continue
        own = lines.of(gang)
        shared = [LineKey(_EVERYBODY, each.pool) for each in own]
        simulated = known.get(gang.uid)
        if simulated is not None and simulated.never:
            continue
        if simulated is not None and simulated.p50_at is not None:
            # Gangs behind this one are counted from its start.
            for each in (*own, *shared):
                if simulated.p50_at > since.get(each, now):
                    since[each], wanted[each] = simulated.p50_at, 0
            continue
        for_quota = blocked.reason in _WAITS_FOR_QUOTA
        for each in own if for_quota else (*own, *shared):
            wanted[each] += max(1, gang.gpus)
        if asked is not None and gang.uid not in asked:
            continue
        waits = [
            (since.get(each, now) - now + wanted[each] / returned.rate, returned.width)
            for each in (own if for_quota else shared)
            if (returned := returns.get(each)) is not None
        ]
        if waits:  # otherwise it waits for none of the known ends
            starts.append(_start(gang, *min(waits), now=now))
    return starts


def _start(gang: Gang, wait: float, width: float, *, now: float) -> ExpectedStart:
    wait = min(FARTHEST_SECONDS / width, max(LEAST_SECONDS, wait))
    return ExpectedStart(key=gang.key, uid=gang.uid, p50_at=now + wait, p90_at=now + width * wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Returned:
    """GPUs that running gangs release to a line."""

    rate: float
    """GPUs per second, above 0."""
    width: float
    """Width of the band."""


def _returned(snapshot: Snapshot, *, lines: Lines, now: float) -> Mapping[LineKey, _Returned]:
    """Return the rate at which running gangs release GPUs, by line.

    Each gang counts as if it released its GPUs once per remaining time.
    """
    gpus, unknown = Counter[LineKey](), Counter[LineKey]()
    rates: dict[LineKey, float] = {}
    for held in snapshot.admitted:
        # A foreign pod without a known end may stay for ever.
        if held.is_overdue or (held.is_foreign and held.ends_at is None):
            continue
        left, is_known = _remaining(held, now=now)
        root = lines.root(held.gang.queue)
        for line in (LineKey(root, held.pool), LineKey(_EVERYBODY, held.pool)):
            gpus[line] += held.gpus
            unknown[line] += 0 if is_known else held.gpus
            rates[line] = rates.get(line, 0.0) + held.gpus / max(LEAST_SECONDS, left)
    return {
        line: _Returned(rate=rate, width=UNKNOWN_WIDTH if 2 * unknown[line] > gpus[line] else WIDTH)
        for line, rate in rates.items()
        if rate > 0.0
    }


def _remaining(held: Admitted, *, now: float) -> tuple[float, bool]:
    """Return the remaining seconds of a gang, and whether they are more than a guess.

    A gang with a limit counts with half of its remaining limit, because few gangs use up their
    limits. A gang of unknown length runs as long again as it has, or for `USUAL_SECONDS` if that
    is longer.
    """
    left = expected_end(held=held, now=now) - now
    if held.ends_at is not None:
        return left, True
    if held.gang.max_runtime_seconds is not None:
        return left / 2.0, True
    return max(USUAL_SECONDS, left), False
