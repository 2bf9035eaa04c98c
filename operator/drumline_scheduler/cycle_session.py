"""The state of one cycle, shared by its phases: repair, admission, growth.

`open_session` builds it from the arguments of the cycle and nominates again the slots that earlier
cycles reserved. From then on capacity and quota only shrink, except when a preemption, a move or a
released nomination frees some. Then cached rejections are cleared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.admitted_gangs import AdmittedGangs
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.model import (
    Admitted,
    Gang,
    Policy,
    PreemptionRule,
    Queue,
    WaitingRule,
    order_key,
)
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.placer import Placer
from drumline_scheduler.placement.projection import Projection, recall_pending
from drumline_scheduler.preemption.candidates import Candidates
from drumline_scheduler.preemption.consolidation import Consolidator
from drumline_scheduler.preemption.preemptor import Preemptor
from drumline_scheduler.preemption.relocation import MoveAllowance
from drumline_scheduler.preemption.repair import GangRepair
from drumline_scheduler.preemption.repair_turns import RepairTurns
from drumline_scheduler.queueing.deferral import (
    COSTLY,
    FEW_VICTIMS,
    NONE_DEFERRED,
    Deferral,
    deferred_gangs,
)
from drumline_scheduler.queueing.groups import GangGroups, running_groups
from drumline_scheduler.queueing.kept_rejections import RejectionStore
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.queueing.rejection_cache import RejectionCache
from drumline_scheduler.queueing.reservations import MOST_ENDS, Reservations
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.queueing.sweeps import SweepLimits
from drumline_scheduler.quota.pool_selection import PoolSelector
from drumline_scheduler.quota.queue_access import QueueAccess
from drumline_scheduler.quota.unmet_demand import UnmetDemand
from drumline_scheduler.quota.usage_budgets import Budgets
from drumline_scheduler.work import (
    CyclePart,
    begin,
    is_nearly_over,
    is_overdue,
    lateness,
    note_start,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSession:
    """The state that the phases of one cycle share."""

    policy: Policy
    now: float
    explain: bool
    """True if rejections name the gangs whose end would help."""
    only_starts: bool
    """True if nothing but starts and repairs is asked for."""
    queues: Mapping[str, Queue]
    pools: PoolSelector
    projection: Projection
    placer: Placer
    candidates: Candidates
    move_budget: MoveAllowance
    preemptor: Preemptor
    repair: GangRepair
    unmet_demand: UnmetDemand
    """Demand that no pool could meet. It holds later gangs back (under the strict rule) and keeps
    elastic gangs from growing."""
    pending: PendingGangs
    evicted: Sequence[Gang]
    """Gangs evicted by earlier cycles that have not left yet. They wait again once they have left.
    """
    rejections: RejectionCache
    kept: RejectionStore
    """Rejections of earlier cycles."""
    reservations: Reservations
    sweeps: SweepLimits
    budgets: Budgets
    try_budget: int | None
    """Units of searches for each namespace. None: no limit."""
    put_off: Sequence[str]
    """Uids of gangs for which the time of earlier cycles did not suffice."""
    known: frozenset[str]
    """Uids of gangs that were tried in an earlier cycle, under the strict rule."""
    running: Sequence[Admitted]
    """The gangs that hold places."""
    stay: tuple[str, ...]
    """Uids of gangs whose move is cancelled, because their new slots are gone."""

    def begin_repairs(self, broken: Sequence[Admitted]) -> None:
        """Begin a pass over the broken gangs."""
        if broken:
            self.begin(CyclePart.REPAIR)
            self.repair.turns.begin(broken)

    def begin(self, part: CyclePart | None) -> None:
        """Begin a part of the cycle with a share of its time (`work.Work.begin`)."""
        if self.try_budget is not None:
            begin(part)

    def note_start(self) -> None:
        """Allow more time, because a gang starts."""
        if self.try_budget is not None:
            note_start()

    def is_late(self, place: str) -> bool:
        """Return whether the rest of the part waits for the next cycle (`work.Work.is_late`).

        A cycle without a budget for searches is never late.
        """
        return lateness(self.try_budget)(place)

    def is_nearly_over(self, place: str, *, kept: float) -> bool:
        """Return whether only a kept share of the time of the part is left."""
        return self.try_budget is not None and is_nearly_over(place, kept=kept)

    def is_overdue(self, place: str) -> bool:
        """Return whether even privileged gangs wait for the next cycle."""
        return self.try_budget is not None and is_overdue(place)

    def groups_of_nominated(self, nominated: Sequence[Gang]) -> dict[str, tuple[Gang, ...]]:
        """Return the gangs that start together with each nominated gang, by uid.

        Gangs that start alone are left out.

        Args:
            nominated: the nominated waiting gangs.
        """
        if not any(gang.group for gang in nominated):
            return {}
        groups = GangGroups(
            waiting=nominated, admitted=self.running, costs_of=self.pending.costs_of
        )
        known = ((gang.uid, groups.group_of(gang)) for gang in nominated)
        return {uid: group.members for uid, group in known if group is not None}


def open_session(
    cycle: CycleInput,
    *,
    admitted: AdmittedGangs,
    cluster: ClusterView,
    pending: PendingGangs,
    kept: RejectionStore,
) -> CycleSession:
    """Open the session of a cycle.

    Args:
        cycle: the arguments of the cycle.
        admitted: the running gangs of its snapshot.
        cluster: the current view of its snapshot.
        pending: its waiting gangs, sorted.
        kept: rejections of earlier cycles.
    """
    snapshot, policy, now, explain = cycle.snapshot, cycle.policy, cycle.now, cycle.explain
    queues, cluster.quota.names = {queue.name: queue for queue in snapshot.queues}, explain
    budgets = Budgets(snapshot, now=now)
    # The two views and the searches in them.
    projection = Projection(current=cluster, admitted=admitted.unsettled)
    placer = Placer(projection, explain=explain, is_late=lateness(cycle.try_budget))
    # Preemption and moves.
    candidates = Candidates(snapshot=snapshot, budgets=budgets, policy=policy, now=now)
    budget = _move_budget(cycle, admitted=admitted, candidates=candidates)
    consolidator = Consolidator(projection=projection, candidates=candidates, budget=budget)
    preemptor = Preemptor(projection=projection, candidates=candidates, consolidator=consolidator)
    # Pending gangs.
    unmet_demand = UnmetDemand(tree=cluster.quota.tree, strict=policy.waiting is WaitingRule.STRICT)
    kept.keep_if_same(cluster, cluster.shapes, cluster.quota.tree, pending, explain)
    session = CycleSession(
        policy=policy,
        now=now,
        explain=explain,
        only_starts=cycle.only_starts,
        queues=queues,
        pools=PoolSelector(pools=snapshot.pools, quota=cluster.quota),
        projection=projection,
        placer=placer,
        candidates=candidates,
        move_budget=budget,
        preemptor=preemptor,
        repair=GangRepair(
            projection=projection,
            placer=placer,
            candidates=candidates,
            preemptor=preemptor,
            preempts=policy.repairs_preempt,
            unmet_demand=unmet_demand,
            queues=queues,
            now=now,
            explains=not cycle.only_starts,
            turns=_repair_turns(cycle),
        ),
        unmet_demand=unmet_demand,
        pending=pending,
        evicted=admitted.evicted,
        rejections=RejectionCache(pending, deferral=_deferral(cycle, pending=pending)),
        kept=kept,
        reservations=_reservations(cycle, projection=projection),
        sweeps=_sweep_limits(snapshot.admitted, pending),
        budgets=budgets,
        try_budget=cycle.try_budget,
        put_off=cycle.put_off,
        known=cycle.known,
        running=snapshot.admitted,
        stay=projection.recall_running(admitted.unsettled),
    )
    candidates.exclude(projection.nominated)
    _recall_pending(session)
    return session


def _move_budget(
    cycle: CycleInput, *, admitted: AdmittedGangs, candidates: Candidates
) -> MoveAllowance:
    costs = candidates.moving_costs
    return MoveAllowance.of(cycle.policy.moves, admitted=admitted.unsettled, cost=costs)


def _repair_turns(cycle: CycleInput) -> RepairTurns:
    return RepairTurns(
        is_late=lateness(cycle.try_budget),
        # A repair searches for one size.
        is_costly=lambda gang: cost_of(replace(gang, sizes=())) > COSTLY,
        not_tried=Deferral.rejection,
        before=cycle.put_off,
    )


def _reservations(cycle: CycleInput, *, projection: Projection) -> Reservations:
    return Reservations(
        projection=projection,
        running=cycle.snapshot.admitted,
        policy=cycle.policy,
        now=cycle.now,
        most_ends=None if cycle.try_budget is None else MOST_ENDS,
    )


def _deferral(cycle: CycleInput, *, pending: PendingGangs) -> Deferral:
    """Return the gangs that the cycle does not try."""
    if cycle.try_budget is None:
        return NONE_DEFERRED
    queues = {queue.name: queue for queue in cycle.snapshot.queues}
    preempting = {name for name, each in queues.items() if each.preemption != PreemptionRule()}
    access = QueueAccess(queues)
    admitted = cycle.snapshot.admitted
    has_victims = sum(not held.is_foreign for held in admitted) > FEW_VICTIMS
    deferral = deferred_gangs(
        pending,
        budget=cycle.try_budget,
        before=cycle.deferred,
        tries=[*cycle.put_off, *(each.uid for each in cycle.snapshot.asked)],
        may_start=lambda gang: access.rejection(gang) is None,
        may_preempt=lambda gang: (
            has_victims and (gang.queue in preempting or bool(gang.override)) and gang.preempts
        ),
        now=cycle.now,
        begun=running_groups(cycle.snapshot.admitted),
        passed=cycle.passed if cycle.policy.waiting is WaitingRule.STRICT else None,
        # Reservations or moves are searched for each gang that does not fit.
        beside=int(
            bool(admitted)
            and (cycle.policy.waiting is WaitingRule.BACKFILL or cycle.policy.moves is not None)
        ),
    )
    return replace(deferral, before=cycle.deferred)


def _sweep_limits(running: Iterable[Admitted], pending: PendingGangs) -> SweepLimits:
    nominated = (gang for gang in pending.individual if gang.nominated)
    return SweepLimits(admitted=running, nominated=nominated)


def _recall_pending(session: CycleSession) -> None:
    """Nominate again the slots that earlier cycles reserved for pending gangs.

    Running gangs come before them: their moves and repairs hold capacity already.
    """
    nominated = (gang for gang in session.pending.individual if gang.nominated)
    for gang in sorted(nominated, key=order_key):
        queue = session.queues.get(gang.queue)
        if queue is None or queue.drained or session.budgets.rejection(gang):
            continue
        if gang.retry_at > session.now + session.policy.overdue_seconds:
            continue  # its nodes would be idle for longer than `overdue_seconds`
        recall_pending(session.projection, gang=gang, queue=queue)
    # Places are kept for all gangs of a group or for none.
    waiting = [gang for gang in session.pending.individual if gang.group]
    if not any(gang.nominated for gang in waiting):
        return
    groups = GangGroups(
        waiting=waiting, admitted=session.running, costs_of=session.pending.costs_of
    )
    for gang in waiting:
        group = groups.group_of(gang)
        nomination = session.projection.nomination(gang)
        if group is None or nomination is None:
            continue
        whole = all(session.projection.nomination(each) for each in group.members)
        if not (whole and group.is_complete):
            session.projection.release(nomination)
