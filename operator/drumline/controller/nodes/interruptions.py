"""The history of reclaims by spot pool, stored in the pools' statuses.

A reclaim is counted when its notice is first seen on a node. The status names the nodes that were
counted and still exist, so a new leader counts none twice. Two things are not counted: a node that
left without a notice, or before an observation saw it, and the GPU-seconds of an interval of more
than ten minutes without an observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, cast

from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.capacity import InterruptionDay, InterruptionsStatus
from drumline_api.conditions import DisruptionKind
from drumline_api.load import ApiError, parse
from drumline_scheduler.disruption.interruptions import PoolUse, UseByDay, recent, with_use
from drumline_scheduler.disruption.model import Confidence, Disruption
from drumline_scheduler.model import DAY_SECONDS, HOUR_SECONDS, CapacityType, Policy, Snapshot

FIELD: Final = "interruptions"
WRITE_SECONDS: Final = 600.0
"""Least time between two writes that record only the passing time."""
LONGEST_LOOK_SECONDS: Final = 600
"""Longest interval between two observations for which GPU-seconds are counted."""
MOST_NODES: Final = 256
"""Most nodes that a status names."""

Json = Mapping[str, Any]


@dataclass(slots=True)
class _PoolHistory:
    """The history of one pool."""

    days: UseByDay = field(default_factory=dict[int, PoolUse])
    counted: frozenset[str] = frozenset()
    """Nodes with a notice that was counted."""
    looked_at: float | None = None


class Interruptions:
    """The histories of all spot pools. For one event loop."""

    def __init__(self) -> None:
        self._pools: dict[str, _PoolHistory] = {}
        self._restart_seconds = Policy().restart_seconds

    def restore(self, statuses: Mapping[str, Json], *, policy: Policy) -> None:
        """Start with the pools' statuses. An unreadable one counts as none."""
        known = {name: _history_of(status.get(FIELD)) for name, status in statuses.items()}
        self._pools = {name: history for name, history in known.items() if history is not None}
        self._restart_seconds = policy.restart_seconds

    def lost_percent(self, pool: str, *, now: float) -> int:
        """Return the extra cost of kept work in a pool, in percent. 0 without a history."""
        history = self._pools.get(pool)
        return 0 if history is None else recent(history.days, day=_day(now)).lost_percent

    def observe(self, snapshot: Snapshot, disruptions: Iterable[Disruption], *, now: float) -> None:
        """Count the use by jobs since the last observation, and the reclaims announced since.

        Args:
            snapshot: gangs that hold GPUs now.
            disruptions: reclaims that nodes announce now.
            now: Unix time in seconds.
        """
        pool_of = {node.name: node.pool for node in snapshot.nodes}
        announced = {
            each.node
            for each in disruptions
            if each.kind is DisruptionKind.SPOT_RECLAIM and each.confidence is Confidence.CERTAIN
        }
        spot = {pool.name for pool in snapshot.pools if pool.capacity is CapacityType.SPOT}
        # Only spot pools have a history. A pool that changes its type loses it.
        self._pools = {name: self._pools.get(name) or _PoolHistory() for name in spot}
        for name, history in self._pools.items():
            here = frozenset(node for node in announced if pool_of.get(node) == name)
            self._count(name, history, here, snapshot=snapshot, now=now)

    def status_fields(
        self, pool: str, *, before: Json, changed: bool, now: float
    ) -> dict[str, Any]:
        """Return the field of a pool's status: refreshed after a reclaim, otherwise rarely.

        Args:
            pool: name of the pool.
            before: its current status.
            changed: whether the status is written for another reason.
            now: seconds since the epoch.
        """
        history = self._pools.get(pool)
        if history is None:
            return {}
        known = before.get(FIELD)
        stays = not changed and known is not None and _is_fresh(known, history, now=now)
        return {FIELD: known if stays else _fields(history, now=now)}

    def _count(
        self,
        pool: str,
        history: _PoolHistory,
        announced: frozenset[str],
        *,
        snapshot: Snapshot,
        now: float,
    ) -> None:
        # Phase 1: the length of the interval. After a gap, or a clock that was set back, it is 0.
        seconds = 0 if history.looked_at is None else int(now) - int(history.looked_at)
        if not 0 <= seconds <= LONGEST_LOOK_SECONDS:
            seconds = 0
        # Phase 2: the GPUs held by jobs, and those whose gang a reclaim ends. A reclaim in the
        # surplus of a gang restarts the gang in its other pool too.
        fresh = announced - history.counted
        beside = {held.gang.uid: held.gpus for held in snapshot.admitted if held.gang.surplus}
        held = lost = 0
        for admitted in snapshot.admitted:
            if admitted.pool == pool and not admitted.is_foreign:
                held += admitted.gpus
                if fresh and not fresh.isdisjoint(admitted.survivors.values()):
                    lost += admitted.gpus + beside.get(admitted.gang.surplus_of, 0)
        # Phase 3: add to the day, in whole GPUs.
        parts = next((each.parts_per_gpu for each in snapshot.pools if each.name == pool), 1)
        use = PoolUse(
            gpu_seconds=held * seconds // parts,
            reclaimed_nodes=len(fresh),
            lost_gpu_seconds=round(lost * self._restart_seconds / parts),
        )
        if use != PoolUse():
            history.days = with_use(history.days, use, day=_day(now))
        history.counted, history.looked_at = announced, now


def _is_fresh(known: object, history: _PoolHistory, *, now: float) -> bool:
    """Return whether the written field is still recent enough."""
    written = _history_of(known)
    if written is None or written.looked_at is None:
        # Another node was reclaimed: the field must name it at once, or a new leader counts it
        # twice.
        return False
    if sorted(written.counted) != _reclaiming(history):
        return False
    return now - written.looked_at < WRITE_SECONDS


def _reclaiming(history: _PoolHistory) -> list[str]:
    """Return the nodes that a status names, in a stable order."""
    return sorted(history.counted)[:MOST_NODES]


def _fields(history: _PoolHistory, *, now: float) -> dict[str, Any]:
    use = recent(history.days, day=_day(now))
    return InterruptionsStatus(
        gpu_hours=use.gpu_seconds // HOUR_SECONDS,
        reclaimed_nodes=use.reclaimed_nodes,
        lost_percent=use.lost_percent,
        reclaiming=_reclaiming(history) or None,
        until=timestamp(now),
        days=[
            InterruptionDay(
                day=datetime.fromtimestamp(day * DAY_SECONDS, tz=UTC).strftime("%Y-%m-%d"),
                gpu_seconds=known.gpu_seconds,
                reclaimed_nodes=known.reclaimed_nodes,
                lost_gpu_seconds=known.lost_gpu_seconds,
            )
            for day, known in sorted(history.days.items())
        ]
        or None,
    ).model_dump(by_alias=True, exclude_none=True)


def _history_of(raw: object) -> _PoolHistory | None:
    if not isinstance(raw, dict):
        return None
    try:
        status = parse(InterruptionsStatus, cast("Json", raw), at=FIELD)
        return _PoolHistory(
            days={
                date.fromisoformat(each.day).toordinal() - _EPOCH: PoolUse(
                    gpu_seconds=each.gpu_seconds,
                    reclaimed_nodes=each.reclaimed_nodes,
                    lost_gpu_seconds=each.lost_gpu_seconds,
                )
                for each in status.days or ()
            },
            counted=frozenset(status.reclaiming or ()),
            looked_at=parse_timestamp(status.until),
        )
    except (ApiError, ValueError):
        return None


_EPOCH: Final = date(1970, 1, 1).toordinal()


def _day(now: float) -> int:
    return int(now // DAY_SECONDS)
