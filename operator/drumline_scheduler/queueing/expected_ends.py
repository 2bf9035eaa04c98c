"""The expected ends of running gangs, and the cluster view at each of them.

A gang whose program reports its steps is expected to end with the last one. Of the other gangs, a
gang with a maximum runtime is expected to use all of it. A gang without one is expected to run as
long again as it has run, but at least a minute. Most gangs that have run for a minute end soon, and
most that have run for a week do not. A gang that runs past its expected end is expected to end in a
minute. Foreign pods without a limit of their own never end, nor do pods that should have left long
ago.

A `Timeline` is one view that is moved along the ends and back, never farther than necessary. It
begins with the projected view: leaving gangs are gone, and nominated gangs have their slots.

Example: X ends at t=60, Y at t=90. A walk from t=0 applies X's end, then Y's. To look at t=70 next,
only Y's end is undone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.undo import Undo

LEAST_SECONDS: Final = 60.0
"""The shortest time until an end that is only estimated."""


def expected_end(*, held: Admitted, now: float) -> float:
    """Return the expected end of a running gang, on the clock of `now`; infinite: not known."""
    if held.is_overdue or held.gang.hanging:
        return inf
    limit = held.gang.max_runtime_seconds
    latest = inf if limit is None else held.admitted_at + limit
    # The tenant's own estimate counts only until it has passed, and
    # never beyond the maximum runtime.
    if held.ends_at is not None and held.ends_at > now:
        return max(now + LEAST_SECONDS, min(held.ends_at, latest))
    if limit is None and held.is_foreign:
        return inf if held.ends_at is None else now + LEAST_SECONDS
    if limit is None:
        return now + max(LEAST_SECONDS, now - held.admitted_at)
    return latest if latest > now else now + LEAST_SECONDS


def expected_length(gang: Gang) -> float:
    """Return the expected runtime in seconds of a gang that starts now."""
    limit = gang.max_runtime_seconds
    return LEAST_SECONDS if limit is None else limit


def latest_end(*, gang: Gang, now: float) -> float:
    """Return the latest end of a gang that starts now; infinite without a maximum runtime.

    A reservation must not depend on an estimate for a gang that has not started. Otherwise a stream
    of jobs of unknown runtime would delay a large gang for ever.
    """
    return inf if gang.max_runtime_seconds is None else now + gang.max_runtime_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlacement:
    """A gang with its nodes by position."""

    gang: Gang
    pool: str
    nodes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of main pods."""
        return len(self.nodes) - self.gang.extras

    @property
    def gpus(self) -> int:
        """GPUs of all its pods."""
        return self.gang.gpus_at(self.size)

    def take(self, cluster: ClusterView) -> Undo:
        """Add it to a view, with its quota, and return the undo."""
        cluster.take(gang=self.gang, pool=self.pool, nodes=self.nodes)
        cluster.quota.hold(gang=self.gang, pool=self.pool, size=self.size)
        return lambda: _leave(cluster=cluster, gang=self.gang, pool=self.pool)

    def fits(self, cluster: ClusterView) -> bool:
        """Return whether these slots and the quota are free in a view."""
        view = cluster.pools[self.pool]
        allocation = view.allocation(gang=self.gang, nodes=self.nodes)
        return cluster.quota.has_room(gang=self.gang, pool=self.pool, size=self.size) and all(
            all(need <= have for need, have in zip(amounts, view.free[i], strict=True) if need)
            for i, amounts in allocation.amounts.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """The end of a gang, or (with a placement) its start."""

    at: float
    gang: Gang
    pool: str
    placement: GangPlacement | None = None

    @property
    def order(self) -> tuple[float, bool, str]:
        """Sort key: by time, ends before starts of the same time."""
        return (self.at, self.placement is not None, self.gang.uid)

    def apply(self, cluster: ClusterView) -> Undo:
        """Apply it to a view and return the undo."""
        if self.placement is not None:
            return self.placement.take(cluster)
        return cluster.dismiss(gang=self.gang, pool=self.pool)


class Timeline:
    """A cluster view that is moved from one expected end to the next.

    Args:
        start: cluster view to begin with; the timeline owns it from then on.
        running: running gangs by uid; all other gangs of the view start now.
        now: time of the view.
    """

    def __init__(self, *, start: ClusterView, running: Mapping[str, Admitted], now: float) -> None:
        self.cluster = start
        self._now = self._at = now
        self._events = sorted(_ends(start, running, now), key=_order)
        self._supply = _supply(cluster=start, events=self._events, now=now)
        self._undos: list[tuple[float, Undo]] = []
        """Times of the applied events, and how to undo them."""
        self.moved = 0
        """Number of events that were applied or undone."""
        self._in_order = True
        """True if these events are in the order of time."""

    def earliest(self, *, gang: Gang, pools: Iterable[str], size: int) -> float | None:
        """Return a lower bound on a gang's start; None if it never has enough GPUs.

        It counts GPUs only, as if no other gang started. O(log ends).

        Args:
            gang: the gang.
            pools: pools that it may use.
            size: number of main pods.
        """
        gpus, times = gang.gpus_at(size), list[float]()
        for pool in pools:
            free, ends = self._supply[pool]
            index = bisect_left(free, gpus)
            if index < len(ends):
                times.append(ends[index])
        return min(times, default=None)

    def ends(self, *, since: float) -> Iterator[float]:
        """Move to the ends one after the other, without a limit, and yield their times.

        Args:
            since: earlier ends are skipped.
        """
        self._rewind(since)
        if self._at == since and self._done:
            yield self._at
        while self._done < len(self._events):
            self._at = self._events[self._done].at
            leaves = False
            # Apply all events of one time together. A time at which gangs only start frees nothing.
            while self._done < len(self._events) and self._events[self._done].at <= self._at:
                event = self._events[self._done]
                leaves = leaves or event.placement is None
                self._apply(event)
            if leaves and self._at >= since:
                yield self._at

    @property
    def last_end(self) -> float:
        """The time of the last end. Nothing is free later that is not free then."""
        ends = (event.at for event in reversed(self._events) if event.placement is None)
        return next(ends, self._at)

    @property
    def _done(self) -> int:
        """The number of applied events."""
        return len(self._undos)

    def _rewind(self, at: float) -> None:
        """Undo the events after a time; all events if they were not applied in order."""
        self.lift()
        if at >= self._at:
            return
        while self._undos and (self._undos[-1][0] > at or not self._in_order):
            self._undos.pop()[1]()
            self.moved += 1
        self._at, self._in_order = (at if self._undos else self._now), True

    def limit(self, *, pool: str, ceiling: list[Vector]) -> None:
        """Limit what is free in a pool, by ordinal, until `lift`."""
        view = self.cluster.pools[pool]
        view.withheld.limit = ceiling
        pairs = enumerate(zip(view.free, ceiling, strict=True))
        # Views share the vectors of unchanged nodes, so identity finds the nodes that differ.
        view.withheld.update([i for i, (free, most) in pairs if free is not most])

    def lift(self) -> None:
        """Remove all limits."""
        for view in self.cluster.pools.values():
            view.withheld.limit = None
            if view.withheld.amounts:
                view.withheld.release(list(view.withheld.amounts))

    def add(self, *, placement: GangPlacement, start: float, end: float) -> None:
        """Add the start and the end of a gang.

        Args:
            placement: the gang in its slots.
            start: time of its start.
            end: time of its end; infinite: it never ends.
        """
        self._insert(
            TimelineEvent(at=start, gang=placement.gang, pool=placement.pool, placement=placement)
        )
        if end < inf:
            self._insert(TimelineEvent(at=end, gang=placement.gang, pool=placement.pool))

    def begin(self, *, placement: GangPlacement, end: float) -> None:
        """Add a gang that starts now, and its end."""
        placement.take(self.cluster)
        if end < inf:
            self._insert(TimelineEvent(at=end, gang=placement.gang, pool=placement.pool))

    def end(self, *, placement: GangPlacement, at: float) -> None:
        """Add the end of a gang that had none."""
        self._insert(TimelineEvent(at=at, gang=placement.gang, pool=placement.pool))

    def _insert(self, event: TimelineEvent) -> None:
        insort(self._events, event, key=_order)
        # The view has already passed this time, so the event is applied now, after later ones.
        if event.at <= self._at:
            self._in_order = self._in_order and event.at == self._at
            self._apply(event)

    def _apply(self, event: TimelineEvent) -> None:
        view = self.cluster.pools[event.pool]
        read = len(view.log)
        self.moved += 1
        self._undos.append((event.at, event.apply(self.cluster)))
        # Freed capacity may exceed the limit of `limit`, so it is withheld again.
        view.withheld.update(view.log[read:])


def _order(event: TimelineEvent) -> tuple[float, bool, str]:
    return event.order


def _ends(
    cluster: ClusterView, running: Mapping[str, Admitted], now: float
) -> Iterable[TimelineEvent]:
    for pool, view in cluster.pools.items():
        for uid, allocation in view.allocations.items():
            held = running.get(uid)
            if held is not None:
                at = expected_end(held=held, now=now)
            else:
                at = now + expected_length(allocation.gang)
            if at < inf:
                yield TimelineEvent(at=at, gang=allocation.gang, pool=pool)


def _supply(
    *, cluster: ClusterView, events: Iterable[TimelineEvent], now: float
) -> dict[str, tuple[list[int], list[float]]]:
    """Return an upper bound on the free GPUs now and after each end, with the times, by pool."""
    supply = {
        pool: ([sum(max(0, amount[0]) for amount in view.free)], [now])
        for pool, view in cluster.pools.items()
    }
    for event in events:
        allocation = cluster.pools[event.pool].allocations[event.gang.uid]
        free, times = supply[event.pool]
        # GPUs that end are added even if a foreign pod over-commits the
        # node: an upper bound is enough.
        free.append(free[-1] + sum(amount[0] for amount in allocation.amounts.values()))
        times.append(event.at)
    return supply


def _leave(*, cluster: ClusterView, gang: Gang, pool: str) -> None:
    cluster.dismiss(gang=gang, pool=pool)
