"""Preemption: choose the victims of a waiting gang, and the slots it gets after their eviction.

Preemption is tried for a gang that was rejected for quota or capacity. If the policy allows it, it
is also tried for a running gang whose lost positions cannot be filled. Such a gang requests slots
like a waiting gang of these pods. Capacity that becomes free anyway (gangs that are leaving, pods
being deleted) counts as free, so that no gang is evicted for it. A gang is a candidate at most once
in a cycle (`candidates`), and only if the preemption policy permits it (`quota.preemption_policy`).
An elastic gang requests its smallest size, because it can grow later.

No gang is evicted for a gang with too many kinds of pods for an exact search.

The phases, for each pool in which the gang was rejected:

1. Consolidation: moves that make room without evicting any gang (`consolidation`).
2. A bound on the capacity that all permitted victims could free (`bounds`). Most requests end here.
3. The search for the cheapest victims on the projected view (`victims`).
4. The cheapest set of all pools is used: its victims are evicted, and the slots nominated.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from drumline_scheduler.decisions import Blocked, BlockReason, Preemption
from drumline_scheduler.model import Admitted, Gang, PreemptionRule, Queue, Reclaim
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.projection import Nomination, Projection
from drumline_scheduler.placement.search import Search, is_exact
from drumline_scheduler.preemption.bounds import PreemptibleQuota, could_suffice
from drumline_scheduler.preemption.candidates import Candidates, Requester
from drumline_scheduler.preemption.consolidation import Consolidation, Consolidator
from drumline_scheduler.preemption.eviction_simulation import EvictionSimulation, EvictionUnit
from drumline_scheduler.preemption.preemption_decision import (
    consolidation_of,
    last_units,
    preemption_of,
)
from drumline_scheduler.preemption.relocation import start_moves
from drumline_scheduler.preemption.requests import PreemptionRequest, VictimChoice
from drumline_scheduler.preemption.victims import least_victims
from drumline_scheduler.quota.preemption_policy import PreemptionClaim
from drumline_scheduler.rejections import Rejection, bounded, counted, named
from drumline_scheduler.undo import Undo

HELPED_BY_PREEMPTION: Final = frozenset(
    {
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.USER_LIMIT,
    }
)
"""Reasons that an eviction can remove."""


class Preemptor:
    """Chooses victims on the projected view.

    Args:
        projection: current and projected view.
        candidates: gangs that may be evicted or moved.
        consolidator: tried before any eviction.
    """

    def __init__(
        self, *, projection: Projection, candidates: Candidates, consolidator: Consolidator
    ) -> None:
        self._projection = projection
        self._candidates = candidates
        self._consolidator = consolidator
        self._quota: dict[str, PreemptibleQuota] = {}
        """Preemptible quota, by pool."""
        self._infeasible: set[Hashable] = set()
        """Requests without an answer since the last preemption."""
        self._undo_of: dict[str, Undo] = {}
        """Undo of the evictions of this cycle, by uid of the preemptor."""

    def may_help(self, *, gang: Gang, queue: Queue, rejections: Mapping[str, Rejection]) -> bool:
        """Return whether moves or victims would be searched for a rejected gang."""
        if gang.no_eviction_reason:
            return False
        reasons = {rejection.reason for rejection in rejections.values()}
        has_rules = bool(rules_of(gang=gang, queue=queue))
        return self._consolidator.may_help(reasons) or (
            has_rules and not HELPED_BY_PREEMPTION.isdisjoint(reasons)
        )

    def preempt(
        self,
        *,
        gang: Gang,
        queue: Queue,
        rejections: Mapping[str, Rejection],
        may_move: bool = True,
    ) -> Preemption | None:
        """Make room for a rejected gang by moves or evictions.

        Args:
            gang: the waiting gang.
            queue: its queue.
            rejections: rejections by pool, in the order of trying.
            may_move: False if no gang is moved for it, so that `withdraw` can undo it.

        Returns:
            The victims and the gang's future slots; None if no permitted preemption helps.
        """
        if gang.no_eviction_reason:
            return None
        # Phase 1. Moves need no preemption rule, because no gang loses its place.
        moves = None
        if may_move:
            moves = self._consolidator.make_room(gang=gang, rejections=rejections)
        if moves is not None:
            return self._consolidate(gang=gang, moves=moves)
        # Phases 2 and 3, for each pool. The second rule is tried if the first one helps nowhere.
        size = gang.legal_sizes[0]
        choices: list[VictimChoice] = []
        for rule in rules_of(gang=gang, queue=queue):
            requests = [
                PreemptionRequest(
                    gang=gang, rule=rule, pool=pool, size=size, gpus=gang.gpus_at(size)
                )
                for pool, rejection in rejections.items()
                if rejection.reason in HELPED_BY_PREEMPTION
            ]
            choices = [choice for request in requests if (choice := self._choose(request))]
            if choices:
                break
        if not choices:
            return None
        # Phase 4.
        best = min(choices, key=lambda choice: choice.cost)
        self._evict(best)
        nodes = self._slots(best)
        self._projection.nominate(Nomination(gang=gang, pool=best.request.pool, nodes=nodes))
        if best.request.rule.reclaim is Reclaim.OVERRIDE:
            # The quota moves in the next cycle. Until then no other job of the queue pays for it.
            running = self._candidates.running(best.request.pool)
            mates = [held.gang.uid for held in running if held.gang.queue == gang.queue]
            self._exclude(mates, undo=self._undo_of[gang.uid], uid=gang.uid)
        return preemption_of(best, assignment=nodes)

    def repair(self, *, held: Admitted, queue: Queue, rejection: Rejection) -> Preemption | None:
        """Evict the cheapest victims so that all lost positions of a running gang can be filled.

        Args:
            held: the broken gang.
            queue: its queue.
            rejection: the rejection of its repair without preemption.
        """
        gang, lost = held.gang, sorted(held.lost)
        if not may_repair(gang, queue=queue, rejection=rejection):
            return None
        # Only the lost positions need slots. The other pods stay, so quota is
        # requested for the lost ones.
        requests = (
            PreemptionRequest(
                gang=gang,
                rule=rule,
                pool=held.pool,
                size=held.size,
                gpus=sum(gang.request_of(position).gpus for position in lost),
                kept=held.survivors,
                is_broken=True,
            )
            for rule in rules_of(gang=gang, queue=queue)
        )
        choice = next(filter(None, map(self._choose, requests)), None)
        if choice is None:
            return None
        self._evict(choice)
        nodes = self._slots(choice)
        self._projection.nominate(
            Nomination(gang=gang, pool=held.pool, nodes=nodes, positions=tuple(lost))
        )
        self._candidates.exclude((gang.uid,))
        node_of = held.survivors | dict(zip(lost, nodes, strict=True))
        assignment = tuple(node_of[position] for position in range(len(held.assignment)))
        return preemption_of(choice, assignment=assignment, replaced=tuple(lost))

    def keep(self, *, gang: Gang, rejections: Mapping[str, Rejection]) -> Nomination | None:
        """Nominate a gang for slots that are free once all evictions in progress have ended.

        Args:
            gang: the waiting gang.
            rejections: rejections by pool, in the order of trying.
        """
        projected, size = self._projection.projected, gang.legal_sizes[0]
        for pool, rejection in rejections.items():
            if rejection.reason not in HELPED_BY_PREEMPTION:
                continue
            search = projected.search(gang=gang, pool=pool, pods=size)
            has_room = projected.quota.has_room(gang=gang, pool=pool, size=size)
            nodes = search.find() if has_room and not isinstance(search, Rejection) else None
            if nodes is not None:
                nomination = Nomination(gang=gang, pool=pool, nodes=tuple(nodes))
                self._projection.nominate(nomination)
                return nomination
        return None

    def restrict(self, uids: frozenset[str] | None) -> None:
        """Let only these gangs be victims from now on. None: all."""
        self._candidates.only = uids
        self._infeasible.clear()

    def withdraw(self, gang: Gang) -> None:
        """Undo a preemption. Later changes of both views must have been undone before."""
        nomination = self._projection.nomination(gang)
        if nomination is not None:
            self._projection.release(nomination)
        self._undo_of.pop(gang.uid, _nothing)()
        self._infeasible.clear()
        self._consolidator.forget()

    def waiting(self, nomination: Nomination) -> Blocked:
        """Return the answer for a gang whose nominated slots are not free yet."""
        gang, leaving = nomination.gang, self._projection.in_the_way(nomination)
        keys = sorted({held.gang.key for held in leaving} - {gang.key})
        cause = f"{named(keys)} to save and leave" if keys else "pods to end that are being deleted"
        slots = f"{counted(len(nomination.nodes), 'place')} in pool {nomination.pool}"
        return Blocked(
            key=gang.key,
            uid=gang.uid,
            reason=BlockReason.WAITING_FOR_VICTIMS,
            message=bounded(f"waits for {cause}; {slots} {_are(nomination)} kept for it"),
            blockers=tuple(keys),
            needed=nomination.gpus,
        )

    def _consolidate(self, *, gang: Gang, moves: Consolidation) -> Preemption:
        pool, plan = moves.pool, moves.plan
        start_moves(projection=self._projection, pool=pool, relocations=plan.relocations)
        self._projection.nominate(Nomination(gang=gang, pool=pool, nodes=plan.nodes))
        self._room_changed(unit.uid for unit in moves.movers)
        return consolidation_of(moves, gang=gang)

    def _room_changed(self, uids: Iterable[str]) -> None:
        """Exclude these gangs as candidates, and retry requests that were infeasible before."""
        self._candidates.exclude(uids)
        self._infeasible.clear()
        self._consolidator.forget()

    def _choose(self, request: PreemptionRequest) -> VictimChoice | None:
        effective, gang = self._projection.effective, request.gang
        search = _search(cluster=effective, request=request)
        if search is None or not is_exact(search):  # each victim would cost a search
            return None
        # Equal requests have equal answers until the next eviction or move.
        asker = (gang.queue, gang.priority, gang.user, request.rule)
        question = (search.question, asker, request.gpus)
        if question in self._infeasible:
            return None
        units = None
        if self._could_suffice(cluster=effective, request=request, search=search):
            units = self._least_victims(request)
        if not units:
            self._infeasible.add(question)
            return None
        return VictimChoice(request=request, search=self._projected(request), units=units)

    def _could_suffice(
        self, *, cluster: ClusterView, request: PreemptionRequest, search: Search
    ) -> bool:
        """Return whether all preemptible capacity together would be enough (phase 2)."""
        pool, quota = request.pool, cluster.quota
        if pool not in self._quota:
            roots = [branch.path[-1] for branch in quota.tree.branches]
            self._quota[pool] = PreemptibleQuota(leaves=quota.usage(pool).leaves, roots=roots)
        with _claim_of(request, cluster=cluster) as claim:
            cohorts, leaf = quota.cohorts(pool), quota.tree.leaf_of[request.gang.queue]
            most = self._quota[pool].most(
                leaf=leaf,
                priority=request.gang.priority,
                rule=request.rule,
                claim=claim,
                usage=quota.usage(pool),
            )
            return could_suffice(
                search=search, cohorts=cohorts, leaf=leaf, gpus=request.gpus, most=most
            )

    def _least_victims(self, request: PreemptionRequest) -> list[EvictionUnit] | None:
        """Return the cheapest victims (phase 3); None if no set helps, or no victim is needed."""
        projected, search = self._projection.projected, self._projected(request)
        with _claim_of(request, cluster=projected) as claim:
            simulation = EvictionSimulation(search=search, claim=claim, gpus=request.gpus)
            if simulation.is_feasible(search.ids):
                return None
            requester = Requester(
                gang=request.gang, rule=request.rule, pool=request.pool, is_broken=request.is_broken
            )
            candidates = self._candidates.permitted(
                requester=requester, projected=projected, claim=claim
            )
            return least_victims(
                simulation=simulation,
                candidates=candidates,
                split=lambda unit, wanted: self._candidates.split(
                    unit, projected=projected, wanted=wanted
                ),
            )

    def _projected(self, request: PreemptionRequest) -> Search:
        search = _search(cluster=self._projection.projected, request=request)
        if search is None:
            raise AssertionError(
                f"{request.gang.key} can be searched for on the current view and not projected"
            )
        return search

    def _evict(self, choice: VictimChoice) -> None:
        """Remove the victims from the projected view (phase 4)."""
        undone = [
            self._projection.dismiss(held=unit.held, kept=unit.kept)
            for unit in last_units(choice.units)
        ]
        self._room_changed(())

        def undo() -> None:
            for step in reversed(undone):
                step()

        uids = [unit.uid for unit in choice.units]
        self._exclude(uids, undo=undo, uid=choice.request.gang.uid)

    def _exclude(self, uids: Sequence[str], *, undo: Undo, uid: str) -> None:
        """Exclude candidates until the preemption of a gang is undone."""
        self._candidates.exclude(uids)

        def undo_all() -> None:
            self._candidates.readmit(uids)
            undo()

        self._undo_of[uid] = undo_all

    def _slots(self, choice: VictimChoice) -> tuple[str, ...]:
        nodes = choice.search.find()
        if nodes is None:
            key = choice.request.gang.key
            raise AssertionError(f"{key} has no slots although its victims are evicted")
        return tuple(nodes)


_NO_PREEMPTION: Final = PreemptionRule()


def _nothing() -> None:
    """Undo nothing."""


def may_repair(gang: Gang, *, queue: Queue, rejection: Rejection) -> bool:
    """Return whether victims are searched for a broken gang.

    Args:
        gang: the gang.
        queue: its queue.
        rejection: the rejection of its repair without preemption.
    """
    is_helped = not gang.no_eviction_reason and rejection.reason in HELPED_BY_PREEMPTION
    return is_helped and bool(rules_of(gang=gang, queue=queue))


def rules_of(*, gang: Gang, queue: Queue) -> list[PreemptionRule]:
    """Return the rules by which victims are chosen for a gang, in the order of trying.

    A gang with an override takes GPUs that other queues are guaranteed only if nothing else helps.
    """
    rules = [queue.preemption] if queue.preemption != _NO_PREEMPTION else []
    if gang.override is not None:
        rules.append(replace(queue.preemption, reclaim=Reclaim.OVERRIDE))
    return rules


def _search(*, cluster: ClusterView, request: PreemptionRequest) -> Search | None:
    search = cluster.search(
        gang=request.gang, pool=request.pool, pods=request.size, kept=request.kept
    )
    return None if isinstance(search, Rejection) else search


@contextmanager
def _claim_of(request: PreemptionRequest, *, cluster: ClusterView) -> Generator[PreemptionClaim]:
    """Yield the request's claim to quota. Quota of its lost positions is not counted meanwhile."""
    gang, pool, quota = request.gang, request.pool, cluster.quota
    undo = quota.hold(gang=gang, pool=pool, size=request.paid) if request.is_broken else None
    try:
        yield quota.claim(gang=gang, pool=pool, size=request.size, rule=request.rule)
    finally:
        if undo:
            undo()


def _are(nomination: Nomination) -> str:
    return "is" if len(nomination.nodes) == 1 else "are"
