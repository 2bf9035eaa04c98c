"""Reservations on the timeline of expected ends, and whether somebody may start in front of them.

Each reservation was given the earliest moment at which its gangs fit, places and quota, without any
reservation before it starting later. The plan keeps a picture of each of these moments; whoever
starts now is entered in those that it will still be running at. Between two moments gangs only
leave, so what fits at all of them fits throughout.

Cost: a reservation is one walk along the ends up to its start, O(ends x depth) and a look at the
index for each; a start is O(its places) in each moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from drumline.scheduling.floor import Floor
from drumline.scheduling.horizon import Horizon
from drumline.scheduling.model import Admitted, Gang
from drumline.scheduling.picture import Picture
from drumline.scheduling.refusals import Refusal
from drumline.scheduling.timeline import Seat, Timeline, expected_length, latest_end
from drumline.scheduling.view import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A gang that waits, at its smallest size."""

    gang: Gang
    pools: tuple[str, ...]
    """Where it may run, in the order of trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Gangs that start together at a moment, each in its places."""

    wishes: tuple[Wish, ...]
    seats: tuple[Seat, ...]
    start: float
    picture: Picture
    """Of that moment, with them in their places."""


class Plan:
    """The reservations made so far.

    Args:
        horizon: the pictures of now and soon.
        running: what is admitted, by uid.
        now: the present moment.
    """

    def __init__(self, *, horizon: Horizon, running: Mapping[str, Admitted], now: float) -> None:
        self._horizon = horizon
        self._running = running
        self._now = now
        self._timeline = Timeline(start=horizon.soon.copy(), running=running, now=now)
        self._floors: dict[tuple[str, tuple[float, ...]], Floor] = {}
        self.reserved: list[Reserved] = []
        """In the order in which they were made."""

    def reserve(self, wishes: Sequence[Wish]) -> Reserved | None:
        """The earliest moment at which some gangs can start together, kept for them from now on."""
        self._timeline.rewind()
        for start in self._timeline.ends():
            seats = self._seats(wishes=wishes, start=start)
            if seats is None:
                continue
            for seat in seats:
                self._timeline.add(seat=seat, start=start, end=start + _length(seat.gang))
            picture = self._timeline.picture.copy()
            made = Reserved(wishes=tuple(wishes), seats=seats, start=start, picture=picture)
            self.reserved.append(made)
            self._floors.clear()
            return made
        return None

    def ahead(self, gang: Gang) -> list[Reserved]:
        """The reservations that begin while the gang would be running, the earliest first."""
        end = latest_end(gang=gang, now=self._now)
        return sorted((one for one in self.reserved if one.start < end), key=lambda one: one.start)

    def spare(self, *, seat: Seat) -> Seat | Reserved:
        """Places in the same pool in which a gang delays nobody, or whom it would delay.

        Args:
            seat: the places it would have if there were no reservations.
        """
        ahead = self.ahead(seat.gang)
        late = next((one for one in ahead if not seat.fits(one.picture)), None)
        if late is None:
            return seat
        return self._elsewhere(seat=seat, ahead=ahead) or late

    def bears(self, *, seat: Seat, late: Reserved) -> bool:
        """Whether all could start as early although a gang starts now, in other places.

        Args:
            seat: of the gang.
            late: who would be late in its present places.
        """
        view = late.picture.views[seat.pool]
        if sum(max(0, free[0]) for free in view.free) < seat.gang.gpus_at(seat.size):
            return False
        twin = Plan(horizon=self._horizon, running=self._running, now=self._now)
        twin.start(seat, until=latest_end(gang=seat.gang, now=self._now))
        for one in self.reserved:
            made = twin.reserve(one.wishes)
            if made is None or made.start > one.start:
                return False
        return True

    def start(self, seat: Seat, *, until: float | None = None) -> None:
        """Count a gang that starts now.

        Args:
            seat: its places.
            until: when those see it end who get a reservation later; None: when it is expected to.
        """
        end = expected_length(seat.gang) + self._now if until is None else until
        self._timeline.begin(seat=seat, end=end)
        for one in self.ahead(seat.gang):
            seat.take(one.picture)
        for (pool, _), floor in self._floors.items():
            if pool == seat.pool:
                floor.start(seat)

    def _seats(self, *, wishes: Sequence[Wish], start: float) -> tuple[Seat, ...] | None:
        """Places for all at the moment of the timeline that delay no other reservation."""
        seats = _seat_all(wishes=wishes, picture=self._timeline.picture)
        if seats is None or not (later := [one for one in self.reserved if one.start > start]):
            return seats
        if _enter(seats=seats, start=start, later=later):
            return seats
        end = start + max(_length(wish.gang) for wish in wishes)
        moments = [one.picture for one in later if one.start < end]
        pools = {pool for wish in wishes for pool in wish.pools}
        views = {
            pool: Floor(base=self._timeline.picture, moments=moments, pool=pool).picture.views[pool]
            for pool in sorted(pools)
        }
        quota = self._timeline.picture.quota.copy()
        seats = _seat_all(wishes=wishes, picture=Picture(views=views, quota=quota))
        return seats if seats and _enter(seats=seats, start=start, later=later) else None

    def _elsewhere(self, *, seat: Seat, ahead: Sequence[Reserved]) -> Seat | None:
        key = (seat.pool, tuple(one.start for one in ahead))
        if key not in self._floors:
            moments = [one.picture for one in ahead]
            self._floors[key] = Floor(base=self._horizon.now, moments=moments, pool=seat.pool)
        search = self._floors[key].picture.search(gang=seat.gang, pool=seat.pool, pods=seat.size)
        nodes = None if isinstance(search, Refusal) else search.find()
        if nodes is None:
            return None
        moved = Seat(gang=seat.gang, pool=seat.pool, nodes=tuple(nodes))
        return moved if all(moved.fits(one.picture) for one in ahead) else None


def _length(gang: Gang) -> float:
    return inf if gang.max_runtime_seconds is None else gang.max_runtime_seconds


def _seat_all(*, wishes: Sequence[Wish], picture: Picture) -> tuple[Seat, ...] | None:
    """Places for all wishes together; the picture is as before in the end."""
    seats: list[Seat] = []
    undos: list[Undo] = []
    for wish in wishes:
        seat = _seat(wish=wish, picture=picture)
        if seat is None:
            break
        seats.append(seat)
        if len(wishes) > 1:
            undos.append(seat.take(picture))
    for undo in reversed(undos):
        undo()
    return tuple(seats) if len(seats) == len(wishes) else None


def _seat(*, wish: Wish, picture: Picture) -> Seat | None:
    gang, size = wish.gang, wish.gang.legal_sizes[0]
    for pool in wish.pools:
        if picture.quota.has_room(gang=gang, pool=pool, size=size):
            search = picture.search(gang=gang, pool=pool, pods=size)
            nodes = None if isinstance(search, Refusal) else search.find()
            if nodes is not None:
                return Seat(gang=gang, pool=pool, nodes=tuple(nodes))
    return None


def _enter(*, seats: Sequence[Seat], start: float, later: Sequence[Reserved]) -> bool:
    """Count gangs in all the moments at which they will run, if there is room in each."""
    undos: list[Undo] = []
    for seat in seats:
        end = start + _length(seat.gang)
        for one in later:
            if one.start < end:
                if not seat.fits(one.picture):
                    for undo in reversed(undos):
                        undo()
                    return False
                undos.append(seat.take(one.picture))
    return True
