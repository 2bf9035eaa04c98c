"""The reservation plan: slots on the timeline of expected ends, which no later start may delay.

A reservation has the earliest start at which its gangs fit, in slots and quota, without delaying an
earlier reservation. The plan keeps a cluster view of each start; a gang that starts now is added to
the views of all starts during its runtime. Between two starts gangs only end, so a gang that fits
all of these views fits throughout.

Example: nodes 1 and 2; X runs on node 1 until t=60. A needs two nodes: its start is t=60, the view
of t=60 has A on both nodes. B needs one node for 30 seconds: no start during its runtime, so it may
take node 2 now. C needs one node for 90 seconds: it does not fit the view of t=60, so it would
delay A.

The first 64 ends of a walk are examined, then every second of 64, every fourth and so on. So the
start of a reservation is the earliest one among these, and some 130 of 500 ends are examined. For
gangs whose searches are costly, the distance grows earlier. When the time of the cycle is over, it
doubles with each end.

Cost: a reservation walks along the ends, from the first at which enough GPUs are free (or from
where the last walk stopped, back to there) to its start: O(ends x depth) and a search of the index
for each. A start is O(its pods) in each view.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, inf
from typing import Final

from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.queueing.capacity_floor import CapacityFloor, lower
from drumline_scheduler.queueing.expected_ends import (
    GangPlacement,
    Timeline,
    expected_length,
    latest_end,
)
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.undo import Undo
from drumline_scheduler.work import is_late, spend

_ENDS_OF_A_STRIDE: Final = 64
"""Ends of a walk after which the distance between examined ends doubles."""
_LEAST_ENDS_OF_A_STRIDE: Final = 8
"""Fewer of them for gangs whose searches are costly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """A pending gang at its smallest size."""

    gang: Gang
    pools: tuple[str, ...]
    """Pools that it may use, in the order of trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReservation:
    """Gangs that start together in their slots."""

    requests: tuple[ReservationRequest, ...]
    placements: tuple[GangPlacement, ...]
    start: float
    cluster: ClusterView
    """The view at the time `start`, with these gangs in their slots."""

    @property
    def stamp(self) -> tuple[str, int]:
        """A value that changes whenever a gang is added to the view."""
        return self.placements[0].gang.uid, self.cluster.quota.version


class ReservationPlan:
    """The reservations made so far.

    Args:
        projection: the current and the projected view.
        running: running gangs by uid.
        now: time of the cycle.
    """

    def __init__(
        self, *, projection: Projection, running: Mapping[str, Admitted], now: float
    ) -> None:
        self._projection = projection
        self._running = running
        self._now = now
        self._timeline = Timeline(start=projection.projected.copy(), running=running, now=now)
        self._floors: dict[tuple[str, tuple[float, ...]], CapacityFloor] = {}
        self._least: dict[Hashable, list[Vector]] = {}
        self.reserved: list[PlannedReservation] = []
        """Reservations in the order in which they were made."""

    def reserve(self, requests: Sequence[ReservationRequest]) -> PlannedReservation | None:
        """Reserve slots for gangs from the earliest time at which all fit; None if never."""
        timeline, ceiling = self._timeline, CapacityCeiling(plan=self, requests=requests)
        # 1. Walk along the ends, from the first at which enough GPUs are free.
        since = _earliest(timeline=timeline, requests=requests)
        # The last end is always examined: a gang that fits at any end mostly fits there.
        following, ends_of_a_stride, last = 0, _ends_of_a_stride(requests), timeline.last_end
        for walked, start in enumerate(() if since is None else timeline.ends(since=since)):
            spend(1)
            if walked < following and start < last:
                continue
            following = walked + (1 << walked // ends_of_a_stride)
            if is_late(f"reserve {requests[0].gang.uid} {walked}"):
                following = max(following, 4 * walked + 3)
            ceiling.move(timeline=timeline, start=start)
            # 2. All gangs must fit, and may take nothing that an earlier reservation needs later.
            placements = _place_all(
                requests=requests, cluster=timeline.cluster, start=start, later=ceiling.later
            )
            if placements is None or not _add_to(
                placements=placements, start=start, reserved=self.reserved
            ):
                continue
            # 3. Add them to the timeline. The copy of the view answers
            # later questions about this start.
            timeline.lift()
            for placement in placements:
                timeline.add(placement=placement, start=start, end=start + _length(placement.gang))
            cluster = timeline.cluster.copy()
            made = PlannedReservation(
                requests=tuple(requests), placements=placements, start=start, cluster=cluster
            )
            self.reserved.append(made)
            self._floors.clear()
            return made
        return None

    @property
    def walked(self) -> int:
        """Number of ends that were walked along, forward or back."""
        return self._timeline.moved

    def during(self, gang: Gang) -> list[PlannedReservation]:
        """Return the reservations that start while a gang that starts now runs, by start."""
        end = latest_end(gang=gang, now=self._now)
        during = (reservation for reservation in self.reserved if reservation.start < end)
        return sorted(during, key=_start_of)

    def spare(self, placement: GangPlacement) -> GangPlacement | PlannedReservation:
        """Return slots in which a gang delays no reservation, or the one it would delay.

        Args:
            placement: the gang in the slots it would have without reservations.
        """
        during = self.during(placement.gang)
        late = next(
            (reservation for reservation in during if not placement.fits(reservation.cluster)), None
        )
        if late is None:
            return placement
        return self._elsewhere(placement=placement, during=during) or late

    def with_start(self, placement: GangPlacement) -> ReservationPlan | None:
        """Return a plan in which a gang starts now and no reservation starts later.

        The reservations may get other slots. None if no such plan is found. A quick check comes
        first. At each start during the gang's runtime, the free GPUs must suffice for it, counted
        in units that all pods are multiples of.
        """
        during = self.during(placement.gang)
        placements = (placement, *_placements(during))
        unit = gcd(*(gpus for each in placements for gpus in _gpus_by_pod(each.gang)))
        for reservation in during if unit else ():
            free = reservation.cluster.pools[placement.pool].free
            if sum(max(0, node[0]) // unit for node in free) * unit < placement.gpus:
                return None
        # Make all reservations again, in their order, beside the gang.
        clone = ReservationPlan(projection=self._projection, running=self._running, now=self._now)
        clone.start(placement, until=latest_end(gang=placement.gang, now=self._now))
        for reservation in self.reserved:
            made = clone.reserve(reservation.requests)
            if made is None or made.start > reservation.start:
                return None
        clone.expect_end(placement)
        return clone

    def expect_end(self, placement: GangPlacement) -> None:
        """Let later reservations see a gang end at its expected end instead of its latest one."""
        if placement.gang.max_runtime_seconds is None:
            self._timeline.end(placement=placement, at=self._now + expected_length(placement.gang))

    def free_during(self, *, pool: str, reserved: Sequence[PlannedReservation]) -> list[Vector]:
        """Return the amounts that are free at the starts of these reservations, by ordinal.

        Args:
            pool: name of the pool.
            reserved: reservations sorted by start; at least one.
        """
        # Computed from the last reservation back, so that lists with a common end share their work.
        key = (pool, *(reservation.stamp for reservation in reserved))
        if key not in self._least:
            free = reserved[0].cluster.pools[pool].free
            rest = self.free_during(pool=pool, reserved=reserved[1:]) if len(reserved) > 1 else free
            self._least[key] = lower(rest, free)
        return self._least[key]

    def start(self, placement: GangPlacement, *, until: float | None = None) -> None:
        """Add a gang that starts now.

        Args:
            placement: the gang in its slots.
            until: its end for later reservations; None: its expected end.
        """
        end = expected_length(placement.gang) + self._now if until is None else until
        self._timeline.begin(placement=placement, end=end)
        for reservation in self.during(placement.gang):
            placement.take(reservation.cluster)
        for (pool, _), floor in self._floors.items():
            if pool == placement.pool:
                floor.start(placement)

    def _elsewhere(
        self, *, placement: GangPlacement, during: Sequence[PlannedReservation]
    ) -> GangPlacement | None:
        key = (placement.pool, tuple(reservation.start for reservation in during))
        if key not in self._floors:
            later = [reservation.cluster for reservation in during]
            self._floors[key] = CapacityFloor(
                base=self._projection.current, later=later, pool=placement.pool
            )
        search = self._floors[key].cluster.search(
            gang=placement.gang, pool=placement.pool, pods=placement.size
        )
        nodes = None if isinstance(search, Rejection) else search.find()
        if nodes is None:
            return None
        moved = GangPlacement(gang=placement.gang, pool=placement.pool, nodes=tuple(nodes))
        return moved if all(moved.fits(reservation.cluster) for reservation in during) else None


class CapacityCeiling:
    """Limits a timeline to the capacity that later reservations leave free, at each end.

    Args:
        plan: the reservations.
        requests: gangs for which a start is searched.
    """

    def __init__(self, *, plan: ReservationPlan, requests: Sequence[ReservationRequest]) -> None:
        self._plan = plan
        self._by_start = sorted(plan.reserved, key=_start_of)
        self._pools = sorted({pool for request in requests for pool in request.pools})
        self._length = max(_length(request.gang) for request in requests)
        self.later: list[PlannedReservation] = []
        """Reservations that start during the runtime of these gangs, by start."""

    def move(self, *, timeline: Timeline, start: float) -> None:
        """Limit the timeline to what is free during the whole runtime of gangs that start then."""
        end = start + self._length
        later = [reservation for reservation in self._by_start if start < reservation.start < end]
        # Starts drop out at the front and come in at the back, so these
        # two checks compare the lists.
        if len(later) == len(self.later) and later[:1] == self.later[:1]:
            return
        self.later = later
        timeline.lift()
        for pool in self._pools if later else ():
            timeline.limit(
                pool=pool, ceiling=list(self._plan.free_during(pool=pool, reserved=later))
            )


def _ends_of_a_stride(requests: Sequence[ReservationRequest]) -> int:
    """Return the ends of a walk after which the distance between examined ends doubles."""
    cost = sum(cost_of(request.gang) for request in requests)
    return max(_LEAST_ENDS_OF_A_STRIDE, _ENDS_OF_A_STRIDE // cost)


def _start_of(reservation: PlannedReservation) -> float:
    return reservation.start


def _placements(reserved: Sequence[PlannedReservation]) -> Iterator[GangPlacement]:
    return (placement for reservation in reserved for placement in reservation.placements)


def _gpus_by_pod(gang: Gang) -> list[int]:
    return [gang.per_pod.gpus, *(role.per_pod.gpus for role in gang.roles)]


def _length(gang: Gang) -> float:
    return inf if gang.max_runtime_seconds is None else gang.max_runtime_seconds


def _earliest(*, timeline: Timeline, requests: Sequence[ReservationRequest]) -> float | None:
    """Return a lower bound on the start of all gangs, by their GPUs; None if they never fit."""
    times = [
        timeline.earliest(gang=request.gang, pools=request.pools, size=request.gang.legal_sizes[0])
        for request in requests
    ]
    known = [at for at in times if at is not None]
    return max(known) if len(known) == len(times) else None


def _place_all(
    *,
    requests: Sequence[ReservationRequest],
    cluster: ClusterView,
    start: float,
    later: Sequence[PlannedReservation],
) -> tuple[GangPlacement, ...] | None:
    """Return slots for all requests together. The view is unchanged afterwards.

    Args:
        requests: gangs that start together.
        cluster: the view at their start, limited to what later reservations leave free.
        start: time of their start.
        later: reservations that start while they run.
    """
    placements: list[GangPlacement] = []
    undos: list[Undo] = []
    for request in requests:
        end = start + _length(request.gang)
        placement = next(
            (
                each
                for each in _placements_of(request=request, cluster=cluster)
                if all(each.fits(other.cluster) for other in later if other.start < end)
            ),
            None,
        )
        if placement is None:
            break
        placements.append(placement)
        if len(requests) > 1:
            undos.append(placement.take(cluster))
    for undo in reversed(undos):
        undo()
    return tuple(placements) if len(placements) == len(requests) else None


def _placements_of(*, request: ReservationRequest, cluster: ClusterView) -> Iterator[GangPlacement]:
    """Yield slots in each pool that has some. Later reservations may need the quota of a pool."""
    gang, size = request.gang, request.gang.legal_sizes[0]
    for pool in request.pools:
        if cluster.quota.has_room(gang=gang, pool=pool, size=size):
            search = cluster.search(gang=gang, pool=pool, pods=size)
            nodes = None if isinstance(search, Rejection) else search.find()
            if nodes is not None:
                yield GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes))


def _add_to(
    *, placements: Sequence[GangPlacement], start: float, reserved: Sequence[PlannedReservation]
) -> bool:
    """Add gangs to the views of all starts during their runtimes, and return True.

    If a gang does not fit one of the views, nothing is added, and the result is False.
    """
    undos: list[Undo] = []
    for placement in placements:
        end = start + _length(placement.gang)
        for reservation in reserved:
            if start < reservation.start < end:
                if not placement.fits(reservation.cluster):
                    for undo in reversed(undos):
                        undo()
                    return False
                undos.append(placement.take(reservation.cluster))
    return True
