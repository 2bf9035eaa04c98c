"""When running gangs are expected to end, and the cluster as it will be then.

A gang that has a maximum runtime is expected to use it up. Of others nobody knows anything but how
long they have run, and the best that can be said from that is "as long again" (a minute at least):
most of those that have run for a minute end soon, most of those that have run for a week do not.
An end that has passed without the gang ending is expected a minute from now.

A `Timeline` is one cluster view that is moved along these ends and back, never farther than it
must. Who was told to leave counts as gone from its start, and who waits for that as seated in its
places (`projection`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from drumline.scheduling.model import Admitted, Gang
from drumline.scheduling.placement.allocations import Vector
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.undo import Undo

LEAST_SECONDS: Final = 60.0
"""Nothing is expected to end sooner when its end is only guessed."""


def expected_end(*, held: Admitted, now: float) -> float:
    """When a running gang will probably leave its places, on the clock of `now`."""
    limit = held.gang.max_runtime_seconds
    if limit is None:
        return now + max(LEAST_SECONDS, now - held.admitted_at)
    end = held.admitted_at + limit
    return end if end > now else now + LEAST_SECONDS


def expected_length(gang: Gang) -> float:
    """How long a gang that starts now will probably run."""
    limit = gang.max_runtime_seconds
    return LEAST_SECONDS if limit is None else limit


def latest_end(*, gang: Gang, now: float) -> float:
    """When a gang that starts now is gone for certain; infinite without a maximum runtime.

    What a reservation needs must not rest on a guess about somebody who has not even started: a
    stream of jobs of unknown length would keep a big one waiting for ever.
    """
    return inf if gang.max_runtime_seconds is None else now + gang.max_runtime_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlacement:
    """A gang in its places."""

    gang: Gang
    pool: str
    nodes: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many main pods it has."""
        return len(self.nodes) - self.gang.extras

    @property
    def gpus(self) -> int:
        """GPUs of all its pods."""
        return self.gang.gpus_at(self.size)

    def take(self, cluster: ClusterView) -> Undo:
        """Count it in a cluster view, places and quota."""
        cluster.take(gang=self.gang, pool=self.pool, nodes=self.nodes)
        cluster.quota.hold(gang=self.gang, pool=self.pool, size=self.size)
        return lambda: _leave(cluster=cluster, gang=self.gang, pool=self.pool)

    def fits(self, cluster: ClusterView) -> bool:
        """Whether a cluster view has exactly these places and the quota for it."""
        view = cluster.pools[self.pool]
        allocation = view.allocation(gang=self.gang, nodes=self.nodes)
        return cluster.quota.has_room(gang=self.gang, pool=self.pool, size=self.size) and all(
            all(need <= have for need, have in zip(amounts, view.free[i], strict=True) if need)
            for i, amounts in allocation.amounts.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """A gang leaves a pool at a moment, or (with a seat) comes."""

    at: float
    gang: Gang
    pool: str
    seat: GangPlacement | None = None

    @property
    def order(self) -> tuple[float, bool, str]:
        """By time; at one moment the leavers first."""
        return (self.at, self.seat is not None, self.gang.uid)

    def apply(self, cluster: ClusterView) -> Undo:
        """Let it happen in a cluster view."""
        if self.seat is not None:
            return self.seat.take(cluster)
        return cluster.dismiss(gang=self.gang, pool=self.pool)


class Timeline:
    """A cluster view that is moved from one expected end to the next.

    Args:
        start: the cluster view to begin with; it belongs to the timeline from then on.
        running: what the cluster holds now, by uid; whoever else the cluster view shows starts now.
        now: the moment of the cluster view.
    """

    def __init__(self, *, start: ClusterView, running: Mapping[str, Admitted], now: float) -> None:
        self.cluster = start
        self._now = self._at = now
        self._changes = sorted(_ends(start, running, now), key=lambda one: one.order)
        self._supply = _supply(cluster=start, changes=self._changes, now=now)
        self._undos: list[tuple[float, Undo]] = []
        """Of the changes that are done, when they were due and how they are undone."""
        self._in_order = True
        """Whether these are in the order of time."""

    def earliest(self, *, gang: Gang, pools: Iterable[str], size: int) -> float | None:
        """Before this moment a gang has not the GPUs that it needs; None: it never has.

        It counts GPUs only, and as if nobody else came. O(log ends).
        """
        gpus, moments = gang.gpus_at(size), list[float]()
        for pool in pools:
            free, ends = self._supply[pool]
            place = bisect_left(free, gpus)
            if place < len(ends):
                moments.append(ends[place])
        return min(moments, default=None)

    def ends(self, *, since: float) -> Iterator[float]:
        """Go to a moment at which somebody leaves, without any ceiling, and on from end to end.

        Args:
            since: earlier ones are passed over.
        """
        self._rewind(since)
        if self._at == since and self._done:
            yield self._at
        while self._done < len(self._changes):
            self._at = self._changes[self._done].at
            leaves = False
            while self._done < len(self._changes) and self._changes[self._done].at <= self._at:
                change = self._changes[self._done]
                leaves = leaves or change.seat is None
                self._apply(change)
            if leaves and self._at >= since:
                yield self._at

    @property
    def _done(self) -> int:
        """How many of the changes have happened."""
        return len(self._undos)

    def _rewind(self, at: float) -> None:
        """Undo what happens after a moment; everything, where that is not in order."""
        self.lift()
        if at >= self._at:
            return
        while self._undos and (self._undos[-1][0] > at or not self._in_order):
            self._undos.pop()[1]()
        self._at, self._in_order = (at if self._undos else self._now), True

    def limit(self, *, pool: str, ceiling: list[Vector]) -> None:
        """Let no more be free in a pool than this, by ordinal, until it is lifted."""
        view = self.cluster.pools[pool]
        view.withheld.limit = ceiling
        pairs = enumerate(zip(view.free, ceiling, strict=True))
        view.withheld.update([i for i, (free, most) in pairs if free is not most])

    def lift(self) -> None:
        """Let everything be free that is."""
        for view in self.cluster.pools.values():
            view.withheld.limit = None
            if view.withheld.amounts:
                view.withheld.release(list(view.withheld.amounts))

    def add(self, *, seat: GangPlacement, start: float, end: float) -> None:
        """Let a gang come and go again."""
        self._insert(TimelineEvent(at=start, gang=seat.gang, pool=seat.pool, seat=seat))
        if end < inf:
            self._insert(TimelineEvent(at=end, gang=seat.gang, pool=seat.pool))

    def begin(self, *, seat: GangPlacement, end: float) -> None:
        """Count a gang that starts at the beginning."""
        seat.take(self.cluster)
        if end < inf:
            self._insert(TimelineEvent(at=end, gang=seat.gang, pool=seat.pool))

    def end(self, *, seat: GangPlacement, at: float) -> None:
        """Let a gang leave that would have stayed."""
        self._insert(TimelineEvent(at=at, gang=seat.gang, pool=seat.pool))

    def _insert(self, change: TimelineEvent) -> None:
        insort(self._changes, change, key=lambda one: one.order)
        if change.at <= self._at:
            self._in_order = self._in_order and change.at == self._at
            self._apply(change)

    def _apply(self, change: TimelineEvent) -> None:
        view = self.cluster.pools[change.pool]
        read = len(view.log)
        self._undos.append((change.at, change.apply(self.cluster)))
        view.withheld.update(view.log[read:])


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
            yield TimelineEvent(at=at, gang=allocation.gang, pool=pool)


def _supply(
    *, cluster: ClusterView, changes: Iterable[TimelineEvent], now: float
) -> dict[str, tuple[list[int], list[float]]]:
    """By pool: the GPUs that are free at most, now and after each end, and when that is."""
    supply = {
        pool: ([sum(max(0, amount[0]) for amount in view.free)], [now])
        for pool, view in cluster.pools.items()
    }
    for change in changes:
        allocation = cluster.pools[change.pool].allocations[change.gang.uid]
        free, moments = supply[change.pool]
        free.append(free[-1] + sum(amount[0] for amount in allocation.amounts.values()))
        moments.append(change.at)
    return supply


def _leave(*, cluster: ClusterView, gang: Gang, pool: str) -> None:
    cluster.dismiss(gang=gang, pool=pool)
