"""The backfill rule: who waits first gets places on the timeline, and nobody may make it late.

The first gangs of each pool that wait for others to leave get reservations, in their order
(`plan`). Whoever comes later starts only in places that delay none of them: in the best ones if it
ends before these are needed or they are needed by nobody, else in others, else if all who have
reservations could start as early elsewhere. A gang without a maximum runtime counts as endless
here.

Reservations are made anew in every cycle from what is known then, so they bind nobody but those
behind: their gangs start as soon as they can, anywhere. Preemption does not ask them: the plan is
made anew after it, and some may start later then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from drumline.scheduling.decisions import BlockReason, Remedy, RemedyKind, Reservation
from drumline.scheduling.model import Admitted, Gang, Policy, WaitingRule
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.queueing.reservation_plan import (
    PlannedReservation,
    ReservationPlan,
    ReservationRequest,
)
from drumline.scheduling.queueing.timeline import GangPlacement
from drumline.scheduling.rejections import Rejection

RESERVED_FOR: Final = frozenset(
    {
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.USER_LIMIT,
        BlockReason.WOULD_DELAY_RESERVATION,
        BlockReason.WAITING_FOR_GROUP,
    }
)
"""Who waits for one of these will start when others have left."""


class Reservations:
    """Who has places on the timeline in one cycle; nobody under any other rule than backfill."""

    def __init__(
        self, *, projection: Projection, running: Iterable[Admitted], policy: Policy, now: float
    ) -> None:
        self._projection = projection
        self._running = running
        self._now = now
        backfills = policy.waiting is WaitingRule.BACKFILL
        self._most = policy.reservations if backfills else 0
        self._plan: ReservationPlan | None = None
        self._is_stale = False
        self._begun = ""
        """Uid of the gang that the plan saw start already."""
        self._by_pool: Counter[str] = Counter()
        self._in_vain: set[Hashable] = set()
        self._full = not self._most

    def wants(self, reason: BlockReason) -> bool:
        """Whether a gang that waits for such a reason might still get a reservation."""
        return not self._full and reason in RESERVED_FOR

    def made(self) -> tuple[Reservation, ...]:
        """All of them, in the order in which they were made."""
        return tuple(
            Reservation(
                key=seat.gang.key,
                uid=seat.gang.uid,
                pool=seat.pool,
                assignment=seat.nodes,
                start_at=one.start,
            )
            for one in (self._current().reserved if self._plan is not None else ())
            for seat in one.seats
        )

    def reserve(self, *, wishes: Sequence[ReservationRequest], kind: Hashable) -> None:
        """Keep places for gangs that wait, from the moment at which all of them can be had.

        Args:
            wishes: gangs that start together.
            kind: what they have in common with those that may ask later.
        """
        if self._full or kind in self._in_vain:
            return
        open_ = [
            ReservationRequest(
                gang=one.gang, pools=tuple(p for p in one.pools if self._by_pool[p] < self._most)
            )
            for one in wishes
        ]
        made = self._current().reserve(open_) if all(one.pools for one in open_) else None
        if made is None:
            self._in_vain.add(kind)
            return
        self._by_pool.update({seat.pool for seat in made.seats})
        self._full = all(self._by_pool[p] >= self._most for p in self._projection.current.pools)

    def spare(self, *, gang: Gang, pool: str, nodes: Sequence[str]) -> list[str] | Rejection:
        """Places in a pool in which a gang makes nobody late, or who keeps it from starting.

        Args:
            gang: who could start.
            pool: where.
            nodes: the places it would have if nobody had a reservation.
        """
        seat = GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes))
        if not self._reserved():
            return list(nodes)
        plan = self._current()
        found = plan.spare(seat=seat)
        if isinstance(found, GangPlacement):
            return list(found.nodes)
        other = plan.with_start(seat)
        if other is not None:
            self._plan, self._begun = other, gang.uid
            return list(nodes)
        return _would_delay(gang=gang, pool=pool, late=found)

    def start(self, *, gang: Gang, pool: str, nodes: Sequence[str]) -> None:
        """Count a gang that starts now."""
        if self._plan is not None and not self._is_stale and gang.uid != self._begun:
            self._plan.start(GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes)))

    def plan_anew(self) -> None:
        """Others leave than it was thought, or somebody does not start after all."""
        self._is_stale, self._begun = True, ""
        self._in_vain.clear()

    def _reserved(self) -> list[PlannedReservation]:
        return self._plan.reserved if self._plan is not None else []

    def _current(self) -> ReservationPlan:
        if self._plan is None or self._is_stale:
            before = self._reserved()
            running = {held.gang.uid: held for held in self._running}
            self._plan = ReservationPlan(
                projection=self._projection, running=running, now=self._now
            )
            self._is_stale = False
            for one in before:
                self._plan.reserve(one.wishes)
        return self._plan


def _would_delay(*, gang: Gang, pool: str, late: PlannedReservation) -> Rejection:
    first = late.seats[0].gang
    advice = "" if gang.max_runtime_seconds is not None else "; a maximum runtime could let it pass"
    return Rejection(
        reason=BlockReason.WOULD_DELAY_RESERVATION,
        message=f"has room in pool {pool} now, but {first.key}, which comes earlier, would start"
        f" later for it{advice}",
        blockers=tuple(sorted(seat.gang.key for seat in late.seats)),
        needed=gang.gpus,
        remedy=Remedy(kind=RemedyKind.WAIT),
    )
