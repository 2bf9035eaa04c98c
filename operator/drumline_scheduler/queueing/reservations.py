"""The backfill rule: the first pending gangs have reservations that no later gang may delay.

The first gangs of each pool that wait for capacity or quota get reservations in scheduling order
(`reservation_plan`). A later gang starts only if it delays none of them:

1. in its best slots, if it ends before they are needed or they are not needed;
2. otherwise in other slots that delay none of them;
3. otherwise in its best slots, if all reservations could start as early in other slots.

A gang without a maximum runtime counts as endless. This is conservative backfill, as in Slurm's
`sched/backfill`: https://slurm.schedmd.com/sched_config.html

Reservations are made again in every cycle from its snapshot, so they bind only later gangs. Their
own gangs start as early as they can, anywhere. Preemption ignores reservations. The plan is made
again after it, and some gangs may start later then. After many preemptions only the first one keeps
its reservation.

Example: two nodes; X runs on one for another hour. A needs both nodes and gets a reservation in one
hour. B needs one node for 30 minutes and starts now; C needs one for two hours and is rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind, Reservation
from drumline_scheduler.model import Admitted, Gang, Policy, WaitingRule
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.queueing.expected_ends import GangPlacement
from drumline_scheduler.queueing.reservation_plan import (
    PlannedReservation,
    ReservationPlan,
    ReservationRequest,
)
from drumline_scheduler.rejections import Rejection

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
"""Reasons that end when other gangs release capacity."""

MOST_ENDS: Final = 1024
"""Expected ends after which a cycle of the operator makes no further reservation for gangs of a
namespace, and after which it makes few again. A walk and the way back count twice."""
_NAMESPACES: Final = 3
"""Namespaces whose whole budgets of ends fit into one cycle. Others have no reservation then."""


class Reservations:
    """The reservations of one cycle. Empty under any other rule than backfill.

    Args:
        projection: current and projected view.
        running: gangs that hold nodes.
        policy: queueing rule and its limits.
        now: Unix time in seconds.
        most_ends: expected ends for gangs of one namespace; three times as many for all. None: no
            limit.
    """

    def __init__(
        self,
        *,
        projection: Projection,
        running: Iterable[Admitted],
        policy: Policy,
        now: float,
        most_ends: int | None = None,
    ) -> None:
        self._most_ends = most_ends
        self._projection = projection
        self._running = running
        self._now = now
        backfills = policy.waiting is WaitingRule.BACKFILL
        self._most = policy.reservations if backfills else 0
        self._plan: ReservationPlan | None = None
        self._is_stale = False
        self._begun = ""
        """Uid of the gang whose start the plan already contains."""
        self._without: ReservationPlan | None = None
        """The plan without this start."""
        self.version = 0
        """A value that changes with the plan, but not with a start that is taken back."""
        self._by_pool: Counter[str] = Counter()
        self._infeasible: set[Hashable] = set()
        self._walked: Counter[str] = Counter()
        """Expected ends that were walked along for gangs, by namespace."""
        self._walked_again = 0
        """Ends that were walked along to make the plan again."""
        self._full = not self._most

    def wants(self, reason: BlockReason) -> bool:
        """Return whether a gang that is rejected for this reason might still get a reservation."""
        return not self._full and reason in RESERVED_FOR

    def has_any(self, pools: Iterable[str]) -> bool:
        """Return whether any of these pools has a reservation."""
        return any(self._by_pool[pool] for pool in pools)

    def made(self) -> tuple[Reservation, ...]:
        """Return all reservations in the order in which they were made."""
        return tuple(
            Reservation(
                key=placement.gang.key,
                uid=placement.gang.uid,
                pool=placement.pool,
                assignment=placement.nodes,
                start_at=reserved.start,
            )
            for reserved in (self._current().reserved if self._plan is not None else ())
            for placement in reserved.placements
        )

    def reserve(self, *, requests: Sequence[ReservationRequest], question: Hashable) -> None:
        """Reserve slots for gangs from the earliest time at which all of them fit.

        Args:
            requests: gangs that start together.
            question: equal for equivalent requests, which have the same answer.
        """
        if self._full or question in self._infeasible:
            return
        open_requests = [
            ReservationRequest(
                gang=request.gang,
                pools=tuple(pool for pool in request.pools if self._by_pool[pool] < self._most),
            )
            for request in requests
        ]
        made, namespace = None, requests[0].gang.namespace
        if self._may_walk(namespace) and all(request.pools for request in open_requests):
            plan = self._current()
            before = plan.walked
            made = plan.reserve(open_requests)
            self._walked[namespace] += plan.walked - before
        if made is None:
            self._infeasible.add(question)
            return
        self.version += 1
        self._by_pool.update({placement.pool for placement in made.placements})
        self._full = all(self._by_pool[p] >= self._most for p in self._projection.current.pools)

    def _may_walk(self, namespace: str) -> bool:
        most = self._most_ends
        return most is None or (
            self._walked[namespace] < most and self._walked.total() < _NAMESPACES * most
        )

    def spare(self, *, gang: Gang, pool: str, nodes: Sequence[str]) -> list[str] | Rejection:
        """Return slots in which a gang delays no reservation, or the rejection of the gang.

        Args:
            gang: the gang that could start.
            pool: the pool in which it could start.
            nodes: the nodes that it would have without reservations.
        """
        placement = GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes))
        if not self._reserved():
            return list(nodes)
        plan = self._current()
        # Cases 1 and 2: slots that no reservation needs.
        outcome = plan.spare(placement)
        if isinstance(outcome, GangPlacement):
            return list(outcome.nodes)
        # Case 3: another plan in which no reservation starts later.
        replanned = plan.with_start(placement)
        if replanned is not None:
            self._without = self._plan
            self._plan, self._begun = replanned, gang.uid
            return list(nodes)
        return _would_delay(gang=gang, pool=pool, late=outcome)

    def start(self, *, gang: Gang, pool: str, nodes: Sequence[str]) -> None:
        """Add a gang that starts now to the plan.

        Args:
            gang: the waiting gang.
            pool: name of the pool.
            nodes: a node for each pod.
        """
        self.version += 1
        if self._plan is not None and not self._is_stale and gang.uid != self._begun:
            self._plan.start(GangPlacement(gang=gang, pool=pool, nodes=tuple(nodes)))

    def take_back(self, uid: str) -> None:
        """Let the plan not count on the start of a gang that could start, but does not."""
        if self._begun == uid:
            self._plan, self._begun = self._without, ""

    def replan(self) -> None:
        """Make the plan again when it is next needed, after an eviction or a withdrawn start."""
        self.version += 1
        self._is_stale, self._begun = True, ""
        self._infeasible.clear()

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
            # The same requests in the same order. Slots and starts may differ. The first one keeps
            # its reservation, whatever the time. Others lose theirs when many ends were walked.
            most = self._most_ends
            for number, reserved in enumerate(before):
                if number and most is not None and self._walked_again >= most:
                    break
                since = self._plan.walked
                self._plan.reserve(reserved.requests)
                self._walked_again += self._plan.walked - since
        return self._plan


def _would_delay(*, gang: Gang, pool: str, late: PlannedReservation) -> Rejection:
    first = late.placements[0].gang
    advice = (
        ""
        if gang.max_runtime_seconds is not None
        else ("; with a maximum runtime it may start now")
    )
    return Rejection(
        reason=BlockReason.WOULD_DELAY_RESERVATION,
        message=f"fits in pool {pool} now, but would delay {first.key}, which comes"
        f" earlier{advice}",
        blockers=tuple(sorted(placement.gang.key for placement in late.placements)),
        needed=gang.gpus,
        remedy=Remedy(kind=RemedyKind.WAIT),
    )
