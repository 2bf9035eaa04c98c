"""Where a cycle's gangs come forward one after the other: may it, does it fit, where, else why not.

The session owns the cycle's mutable state: the current and the projected view, what gangs were
told, who may be sent away for whom, what waits (which under the strict rule holds others back, and
always keeps elastic gangs from growing), and under the backfill rule the reservations.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from drumline.scheduling.admitted_gangs import AdmittedGangs
from drumline.scheduling.decisions import (
    Blocked,
    BlockReason,
    Move,
    Placed,
    Preemption,
    Reservation,
    Resized,
)
from drumline.scheduling.model import Admitted, Gang, Policy, Queue, Snapshot, WaitingRule
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.placement.placer import Placer, placed
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.placement.quota_remedies import QuotaRemedyChecker
from drumline.scheduling.preemption.candidates import Candidates
from drumline.scheduling.preemption.consolidation import Consolidator
from drumline.scheduling.preemption.defragmentation import Defragmenter
from drumline.scheduling.preemption.elastic import Resizer
from drumline.scheduling.preemption.migration import Migrator
from drumline.scheduling.preemption.preemptor import Preemptor
from drumline.scheduling.preemption.relocation import MoveAllowance
from drumline.scheduling.preemption.repair import GangRepair
from drumline.scheduling.queueing.groups import GangGroup
from drumline.scheduling.queueing.pending_gangs import PendingGangs, is_alone
from drumline.scheduling.queueing.rejection_cache import RejectionCache
from drumline.scheduling.queueing.reservation_plan import ReservationRequest
from drumline.scheduling.queueing.reservations import RESERVED_FOR, Reservations
from drumline.scheduling.quota.ordering import BorrowingLevels, order_key, scheduling_order
from drumline.scheduling.quota.pool_selection import PoolSelector
from drumline.scheduling.quota.queue_access import QueueAccess
from drumline.scheduling.quota.unmet_demand import UnmetDemand
from drumline.scheduling.rejections import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotStart:
    """A gang that cannot start now."""

    pools: Mapping[str, Rejection]
    """What it waits for, by pool in the order of trying; none if it may not even try."""
    why: Rejection | None = None
    """The reason for that."""


class CycleSession:
    """One cycle's state and the questions put to it."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        running: AdmittedGangs,
        cluster: ClusterView,
        waiting: PendingGangs,
        policy: Policy,
        now: float,
    ) -> None:
        self._queues = {queue.name: queue for queue in snapshot.queues}
        self._gate = QueueAccess(self._queues)
        self._now = now
        self._views = cluster.pools
        self._pools = PoolSelector(pools=snapshot.pools, quota=cluster.quota)
        self._projection = Projection(current=cluster, admitted=running.unsettled)
        self._placer = Placer(self._projection)
        self._enough = QuotaRemedyChecker(current=cluster, placer=self._placer)
        self._resizer = Resizer(projection=self._projection, placer=self._placer)
        self._candidates = Candidates(
            snapshot=snapshot, queues=self._queues, policy=policy, now=now
        )
        costs = self._candidates.moving_costs
        budget = MoveAllowance.of(policy.moves, admitted=running.unsettled, cost=costs)
        self._preemptor = Preemptor(
            projection=self._projection,
            candidates=self._candidates,
            consolidator=Consolidator(
                projection=self._projection, candidates=self._candidates, budget=budget
            ),
        )
        self._defragmenter = Defragmenter(
            projection=self._projection, candidates=self._candidates, budget=budget
        )
        self._backlog = UnmetDemand(
            tree=cluster.quota.tree, strict=policy.waiting is WaitingRule.STRICT
        )
        self._mender = GangRepair(
            projection=self._projection,
            placer=self._placer,
            candidates=self._candidates,
            preemptor=self._preemptor,
            preempts=policy.repairs_preempt,
            unmet_demand=self._backlog,
            queues=self._queues,
            now=now,
        )
        self._move_back = policy.move_back
        self._migrator = Migrator(
            projection=self._projection,
            placer=self._placer,
            candidates=self._candidates,
            budget=budget,
            pools=self._pools,
            queues=self._queues,
            is_wanted=lambda gang, pool: self._backlog.wants(gang=gang, pool=pool),
        )
        self._waiting = waiting
        self._told = RejectionCache(waiting)
        self._reservations = Reservations(
            projection=self._projection,
            running=snapshot.admitted,
            policy=policy,
            now=now,
        )
        self._gave_back = False
        self.stay = self._projection.recall_running(running.unsettled)
        """Uids of those that were to move and need not leave after all."""
        self._candidates.exclude(self._projection.nominated)
        for gang in sorted(waiting.alone, key=order_key):
            queue = self._queues.get(gang.queue)
            if gang.nominated and queue is not None:
                self._projection.recall(gang=gang, queue=queue)

    @property
    def retries(self) -> Sequence[float]:
        """When minimum runtimes end that kept somebody from a place."""
        return self._candidates.retry_at

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The places that are kept on the timeline for those who wait first."""
        return self._reservations.made()

    def is_nominated(self, gang: Gang) -> bool:
        """Whether places are kept for a gang."""
        return self._projection.nomination(gang) is not None

    def line(self) -> Iterator[Gang]:
        """Each waiting gang that has to be looked at, when it is its turn."""
        quota = self._projection.current.quota
        borrowing = BorrowingLevels(quota=quota, pools=self._pools, queues=self._queues)
        return scheduling_order(
            self._waiting.chains,
            quota=quota,
            borrowing=borrowing.of,
            passed=self._is_passed,
            closed=self._is_closed,
        )

    def told(self, gang: Gang) -> Rejection | None:
        """What a gang was told, or those like it."""
        return self._told.last(gang)

    @property
    def told_by_kind(self) -> Mapping[int, Rejection]:
        """What whole kinds of gangs were told."""
        return self._told.kinds

    def _is_passed(self, gang: Gang) -> bool:
        """Whether a gang need not come forward: it would be told what those like it were."""
        if is_alone(gang):
            return False
        rejection = self._told.rejection(gang)
        return rejection is not None and not self._reservations.wants(rejection.reason)

    def _is_closed(self, gang: Gang) -> bool:
        """Whether that holds for all of its kind, however long they run."""
        rejection = self._told.of_kind(gang)
        return (
            rejection is not None
            and not is_alone(gang)
            and not self._reservations.wants(rejection.reason)
        )

    def repair(self, held: Admitted) -> Placed | Resized | Preemption | Blocked:
        """Replacements for the lost places of an admitted gang; the others stay where they are."""
        return self._mender.repair(held)

    def claim(self, gang: Gang) -> Placed | Blocked:
        """The kept places of a nominated gang as soon as they are free, or any others before."""
        nomination, queue = self._projection.nomination(gang), self._queues[gang.queue]
        if nomination is None:
            raise ValueError(f"no places are kept for {gang.key}")
        if gang.retry_at > self._now:
            return self._backlog.back_off(gang=gang, pools=()).of(gang)
        self._projection.release(nomination)
        pool, nodes, sizes = nomination.pool, nomination.nodes, gang.legal_sizes
        larger = [size for size in sizes if size > nomination.size]
        found = self._anywhere(gang=gang, queue=queue, sizes=larger)
        may = self._projection.has_quota(gang=gang, pool=pool, size=nomination.size)
        if (
            found is None
            and may
            and self._projection.current.fits(gang=gang, pool=pool, nodes=nodes)
        ):
            return self._start(gang=gang, pool=pool, nodes=nodes)
        found = found or self._anywhere(gang=gang, queue=queue, sizes=sizes)
        if found is None:
            self._projection.nominate(nomination)
            return self._preemptor.waiting(nomination)
        self._placer.forget()
        self._gave_back = True
        return found

    def gave_back(self) -> bool:
        """Whether kept places came free since this was last asked."""
        gave_back = self._gave_back or self._mender.gave_back
        self._gave_back = self._mender.gave_back = False
        return gave_back

    def admit(self, gang: Gang) -> Placed | Preemption | Rejection:
        """Places for a waiting gang, now or once others have left for it, or why there are none."""
        rested = gang.retry_at <= self._now
        rejection = self._told.rejection(gang) if rested else None
        if rejection is None:
            outcome = self._try(gang)
            if isinstance(outcome, Placed):
                return outcome
            preemption = self._preempt(gang=gang, denied=outcome)
            if preemption is not None:
                return preemption
            rejection = outcome.why or self._backlog.reject(gang=gang, rejections=outcome.pools)
            if rested:
                self._told.tell(gang=gang, rejection=rejection)
        self._reserve([gang], reason=rejection.reason)
        return rejection

    def admit_together(self, group: GangGroup) -> dict[str, Placed | Rejection | Preemption]:
        """Places for all gangs of a group, or for none of them; by uid."""
        members = group.members
        if not group.is_complete:
            return {gang.uid: group.incomplete() for gang in members}
        rested = all(gang.retry_at <= self._now for gang in members)
        rejected = self._told.group(members) if rested else None
        if rejected is None:
            outcome = self._try_together(group)
            if not isinstance(outcome, Mapping):
                return {one.uid: one for one in outcome}
            rejected = {
                i: group.without_own(
                    denied.why or self._backlog.reject(gang=members[i], rejections=denied.pools)
                )
                for i, denied in outcome.items()
            }
            if rested:
                self._told.tell_group(members=members, rejected=rejected)
        if {one.reason for one in rejected.values()} <= RESERVED_FOR:
            self._reserve(members, reason=BlockReason.WAITING_FOR_GROUP)
        others = group.held_up({members[i].key: one for i, one in rejected.items()})
        return {gang.uid: rejected.get(i, others) for i, gang in enumerate(members)}

    def waiting(self, gang: Gang) -> Blocked:
        """What a gang is told for which others have to leave first."""
        nomination = self._projection.nomination(gang)
        if nomination is None:
            raise ValueError(f"no places are kept for {gang.key}")
        return self._preemptor.waiting(nomination)

    def grow(self, held: Admitted) -> Resized | None:
        """More places for an elastic gang that is whole, if nobody waits who could use them."""
        gang, queue = held.gang, self._queues.get(held.gang.queue)
        if queue is None or held.pool not in self._views or gang.retry_at > self._now:
            return None
        if gang.uid in self._views[held.pool].leaving:  # told so in this cycle
            return None
        if self._backlog.wants(gang=gang, pool=held.pool):
            return None
        resized = self._resizer.grow(held)
        if resized is not None:
            self._candidates.exclude((gang.uid,))
        return resized

    def moves(self) -> tuple[Move, ...]:
        """Moves of running gangs to better pools, and those that free whole domains."""
        back = self._migrator.moves_back() if self._move_back else []
        quiet = [pool for pool in self._views if not self._backlog.is_wanted(pool)]
        return (*back, *self._defragmenter.moves(quiet))

    def _try(self, gang: Gang) -> Placed | CannotStart:
        """Start a gang if it can start now."""
        rejection = self._gate.rejection(gang)
        if rejection:
            return CannotStart(pools={}, why=rejection)
        queue = self._queues[gang.queue]
        pools = self._pools.of(gang=gang, queue=queue)
        if isinstance(pools, Rejection):
            pool, least = pools.remedy.pool if pools.remedy else "", gang.legal_sizes[0]
            enough = (
                self._enough.complete(pools, gang=gang, pool=pool, pods=least) if pool else pools
            )
            return CannotStart(pools={}, why=enough)
        if gang.retry_at > self._now:
            return CannotStart(pools={}, why=self._backlog.back_off(gang=gang, pools=pools))
        smallest, *larger = gang.legal_sizes
        found = self._anywhere(gang=gang, queue=queue, sizes=larger) if larger else None
        if found is not None:
            return found
        rejections: dict[str, Rejection] = {}
        for pool in pools:
            nodes = self._look(gang=gang, pool=pool, pods=smallest)
            if not isinstance(nodes, Rejection):
                return self._start(gang=gang, pool=pool, nodes=nodes)
            rejections[pool] = nodes
        return CannotStart(pools=rejections)

    def _try_together(self, group: GangGroup) -> list[Placed] | Mapping[int, CannotStart]:
        """Start all gangs of a group, or say by position who cannot."""
        first: dict[int, CannotStart] | None = None
        for order in group.orders():
            mark = self._placer.mark()
            placed: list[Placed] = []
            denied: dict[int, CannotStart] = {}
            for gang in order:
                outcome = self._try(gang)
                if isinstance(outcome, Placed):
                    placed.append(outcome)
                else:
                    denied[group.members.index(gang)] = outcome
            if not denied:
                return placed
            self._withdraw(placed=placed, gangs=order, mark=mark)
            first = first or denied
        return first or {}

    def _withdraw(
        self,
        *,
        placed: Iterable[Placed],
        gangs: Iterable[Gang],
        mark: Mapping[Hashable, Rejection],
    ) -> None:
        """Undo starts; `mark`: what was rejected before them."""
        by_uid = {gang.uid: gang for gang in gangs}
        for one in placed:
            self._projection.withdraw(gang=by_uid[one.uid], pool=one.pool)
            self._reservations.plan_anew()
        self._placer.reset(mark)

    def _preempt(self, *, gang: Gang, denied: CannotStart) -> Preemption | None:
        if not denied.pools:
            return None
        queue = self._queues[gang.queue]
        preemption = self._preemptor.preempt(gang=gang, queue=queue, rejections=denied.pools)
        if preemption is not None:
            self._told.forget()
            self._reservations.plan_anew()
        return preemption

    def _reserve(self, gangs: Sequence[Gang], *, reason: BlockReason) -> None:
        if not self._reservations.wants(reason):
            return
        wishes: list[ReservationRequest] = []
        for gang in gangs:
            pools = self._pools.of(gang=gang, queue=self._queues[gang.queue])
            if not isinstance(pools, Rejection):
                wishes.append(ReservationRequest(gang=gang, pools=pools))
        self._reservations.reserve(wishes=wishes, kind=self._told.key(gangs))

    def _anywhere(self, *, gang: Gang, queue: Queue, sizes: Sequence[int]) -> Placed | None:
        """The largest of some sizes, in the first pool that has the places and the quota."""
        pools = self._pools.of(gang=gang, queue=queue)
        for size in reversed(sizes):
            for pool in () if isinstance(pools, Rejection) else pools:
                if self._backlog.behind(gang=gang, pool=pool) or not self._projection.has_quota(
                    gang=gang, pool=pool, size=size
                ):
                    continue
                nodes = self._placer.glimpse(gang=gang, pool=pool, pods=size)
                spare = nodes and self._reservations.spare(gang=gang, pool=pool, nodes=nodes)
                if spare and not isinstance(spare, Rejection):
                    return self._start(gang=gang, pool=pool, nodes=spare)
        return None

    def _look(self, *, gang: Gang, pool: str, pods: int) -> list[str] | Rejection:
        rejection = self._projection.current.quota.never(gang=gang, pool=pool, size=pods)
        if rejection:
            return self._enough.complete(rejection, gang=gang, pool=pool, pods=pods)
        rejection = self._backlog.behind(gang=gang, pool=pool)
        if rejection:
            return rejection
        rejection = self._projection.exhausted(gang=gang, pool=pool, size=pods)
        if rejection:
            # A gang that never fits must not be told (nor hold its queue) to wait for quota.
            hopeless = self._placer.hopeless(gang=gang, pool=pool, pods=pods)
            return hopeless or self._enough.complete(rejection, gang=gang, pool=pool, pods=pods)
        nodes = self._placer.find(gang=gang, pool=pool, pods=pods)
        if isinstance(nodes, Rejection):
            return nodes
        return self._reservations.spare(gang=gang, pool=pool, nodes=nodes)

    def _start(self, *, gang: Gang, pool: str, nodes: Sequence[str]) -> Placed:
        self._projection.take(gang=gang, pool=pool, nodes=nodes)
        self._projection.hold(gang=gang, pool=pool, size=len(nodes) - gang.extras)
        self._reservations.start(gang=gang, pool=pool, nodes=nodes)
        return placed(gang=gang, view=self._views[pool], assignment=nodes)
