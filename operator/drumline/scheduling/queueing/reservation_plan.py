"""Reservations on the timeline of expected ends, and whether somebody may start in front of them.

Each reservation was given the earliest moment at which its gangs fit, places and quota, without any
reservation before it starting later. The plan keeps a cluster view of each of these moments;
whoever starts now is entered in those that it will still be running at. Between two moments gangs
only leave, so what fits at all of them fits throughout.

Cost: a reservation is one walk along the ends, from the first that leaves as many GPUs as it needs
(or from where the last walk stopped, back to there) up to its start, O(ends x depth) and a look at
the index for each; a start is O(its places) in each moment.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, inf

from drumline.scheduling.model import Admitted, Gang
from drumline.scheduling.placement.allocations import Vector
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.queueing.capacity_floor import CapacityFloor, lower
from drumline.scheduling.queueing.timeline import (
    GangPlacement,
    Timeline,
    expected_length,
    latest_end,
)
from drumline.scheduling.rejections import Rejection
from drumline.scheduling.undo import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """A gang that waits, at its smallest size."""

    gang: Gang
    pools: tuple[str, ...]
    """Where it may run, in the order of trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReservation:
    """Gangs that start together at a moment, each in its places."""

    wishes: tuple[ReservationRequest, ...]
    seats: tuple[GangPlacement, ...]
    start: float
    cluster: ClusterView
    """Of that moment, with them in their places."""

    @property
    def stamp(self) -> tuple[str, int]:
        """Another one whenever somebody else is entered."""
        return self.seats[0].gang.uid, self.cluster.quota.version


class ReservationPlan:
    """The reservations made so far.

    Args:
        horizon: the current and the projected view.
        running: what is admitted, by uid.
        now: the present moment.
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
        """In the order in which they were made."""

    def reserve(self, wishes: Sequence[ReservationRequest]) -> PlannedReservation | None:
        """The earliest moment at which some gangs can start together, kept for them from now on."""
        timeline, ceiling = self._timeline, CapacityCeiling(plan=self, wishes=wishes)
        since = _earliest(timeline=timeline, wishes=wishes)
        for start in () if since is None else timeline.ends(since=since):
            ceiling.move(timeline=timeline, start=start)
            seats = _seat_all(wishes=wishes, cluster=timeline.cluster)
            if seats is None or not _enter(seats=seats, start=start, reserved=self.reserved):
                continue
            timeline.lift()
            for seat in seats:
                timeline.add(seat=seat, start=start, end=start + _length(seat.gang))
            cluster = timeline.cluster.copy()
            made = PlannedReservation(
                wishes=tuple(wishes), seats=seats, start=start, cluster=cluster
            )
            self.reserved.append(made)
            self._floors.clear()
            return made
        return None

    def ahead(self, gang: Gang) -> list[PlannedReservation]:
        """The reservations that begin while the gang would be running, the earliest first."""
        end = latest_end(gang=gang, now=self._now)
        return sorted((one for one in self.reserved if one.start < end), key=lambda one: one.start)

    def spare(self, *, seat: GangPlacement) -> GangPlacement | PlannedReservation:
        """Places in the same pool in which a gang delays nobody, or whom it would delay.

        Args:
            seat: the places it would have if there were no reservations.
        """
        ahead = self.ahead(seat.gang)
        late = next((one for one in ahead if not seat.fits(one.cluster)), None)
        if late is None:
            return seat
        return self._elsewhere(seat=seat, ahead=ahead) or late

    def with_start(self, seat: GangPlacement) -> ReservationPlan | None:
        """A plan in which a gang starts now and all start as early as here, in other places."""
        ahead = self.ahead(seat.gang)
        unit = gcd(*(gpus for one in (seat, *_seats(ahead)) for gpus in _gpus_by_pod(one.gang)))
        for one in ahead if unit else ():
            free = one.cluster.pools[seat.pool].free
            if sum(max(0, there[0]) // unit for there in free) * unit < seat.gpus:
                return None
        twin = ReservationPlan(projection=self._projection, running=self._running, now=self._now)
        twin.start(seat, until=latest_end(gang=seat.gang, now=self._now))
        for one in self.reserved:
            made = twin.reserve(one.wishes)
            if made is None or made.start > one.start:
                return None
        twin.expect_end(seat)
        return twin

    def expect_end(self, seat: GangPlacement) -> None:
        """Let those who get a reservation later see a gang end when it is expected to."""
        if seat.gang.max_runtime_seconds is None:
            self._timeline.end(seat=seat, at=self._now + expected_length(seat.gang))

    def least(self, *, pool: str, reserved: Sequence[PlannedReservation]) -> list[Vector]:
        """By ordinal: what is free at all moments of some reservations, the earliest first."""
        key = (pool, *(one.stamp for one in reserved))
        if key not in self._least:
            free = reserved[0].cluster.pools[pool].free
            rest = self.least(pool=pool, reserved=reserved[1:]) if len(reserved) > 1 else free
            self._least[key] = lower(rest, free)
        return self._least[key]

    def start(self, seat: GangPlacement, *, until: float | None = None) -> None:
        """Count a gang that starts now.

        Args:
            seat: its places.
            until: when those see it end who get a reservation later; None: when it is expected to.
        """
        end = expected_length(seat.gang) + self._now if until is None else until
        self._timeline.begin(seat=seat, end=end)
        for one in self.ahead(seat.gang):
            seat.take(one.cluster)
        for (pool, _), floor in self._floors.items():
            if pool == seat.pool:
                floor.start(seat)

    def _elsewhere(
        self, *, seat: GangPlacement, ahead: Sequence[PlannedReservation]
    ) -> GangPlacement | None:
        key = (seat.pool, tuple(one.start for one in ahead))
        if key not in self._floors:
            moments = [one.cluster for one in ahead]
            self._floors[key] = CapacityFloor(
                base=self._projection.current, moments=moments, pool=seat.pool
            )
        search = self._floors[key].cluster.search(gang=seat.gang, pool=seat.pool, pods=seat.size)
        nodes = None if isinstance(search, Rejection) else search.find()
        if nodes is None:
            return None
        moved = GangPlacement(gang=seat.gang, pool=seat.pool, nodes=tuple(nodes))
        return moved if all(moved.fits(one.cluster) for one in ahead) else None


class CapacityCeiling:
    """What is left of a timeline by the reservations that begin later, while gangs walk along it.

    Args:
        plan: the reservations.
        wishes: the gangs.
    """

    def __init__(self, *, plan: ReservationPlan, wishes: Sequence[ReservationRequest]) -> None:
        self._plan = plan
        self._line = sorted(plan.reserved, key=lambda one: one.start)
        self._pools = sorted({pool for wish in wishes for pool in wish.pools})
        self._length = max(_length(wish.gang) for wish in wishes)
        self._later: list[PlannedReservation] = []

    def move(self, *, timeline: Timeline, start: float) -> None:
        """Let only what is free for as long as they would run from some moment on be free there."""
        end = start + self._length
        later = [one for one in self._line if start < one.start < end]
        if len(later) == len(self._later) and later[:1] == self._later[:1]:
            return
        self._later = later
        timeline.lift()
        for pool in self._pools if later else ():
            timeline.limit(pool=pool, ceiling=list(self._plan.least(pool=pool, reserved=later)))


def _seats(reserved: Sequence[PlannedReservation]) -> Iterator[GangPlacement]:
    return (seat for one in reserved for seat in one.seats)


def _gpus_by_pod(gang: Gang) -> list[int]:
    return [gang.per_pod.gpus, *(role.per_pod.gpus for role in gang.roles)]


def _length(gang: Gang) -> float:
    return inf if gang.max_runtime_seconds is None else gang.max_runtime_seconds


def _earliest(*, timeline: Timeline, wishes: Sequence[ReservationRequest]) -> float | None:
    """Before this moment at least one of the gangs has not the GPUs that it needs."""
    moments = [
        timeline.earliest(gang=one.gang, pools=one.pools, size=one.gang.legal_sizes[0])
        for one in wishes
    ]
    known = [one for one in moments if one is not None]
    return max(known) if len(known) == len(moments) else None


def _seat_all(
    *, wishes: Sequence[ReservationRequest], cluster: ClusterView
) -> tuple[GangPlacement, ...] | None:
    """Places for all wishes together; the cluster view is as before in the end."""
    seats: list[GangPlacement] = []
    undos: list[Undo] = []
    for wish in wishes:
        seat = _seat(wish=wish, cluster=cluster)
        if seat is None:
            break
        seats.append(seat)
        if len(wishes) > 1:
            undos.append(seat.take(cluster))
    for undo in reversed(undos):
        undo()
    return tuple(seats) if len(seats) == len(wishes) else None


def _seat(*, wish: ReservationRequest, cluster: ClusterView) -> GangPlacement | None:
    gang, size = wish.gang, wish.gang.legal_sizes[0]
    for pool in wish.pools:
        if cluster.quota.has_room(gang=gang, pool=pool, size=size):
            search = cluster.search(gang=gang, pool=pool, pods=size)
            nodes = None if isinstance(search, Rejection) else search.find()
            if nodes is not None:
                return GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes))
    return None


def _enter(
    *, seats: Sequence[GangPlacement], start: float, reserved: Sequence[PlannedReservation]
) -> bool:
    """Count gangs in all the moments at which they will run, if there is room in each."""
    undos: list[Undo] = []
    for seat in seats:
        end = start + _length(seat.gang)
        for one in reserved:
            if start < one.start < end:
                if not seat.fits(one.cluster):
                    for undo in reversed(undos):
                        undo()
                    return False
                undos.append(seat.take(one.cluster))
    return True
