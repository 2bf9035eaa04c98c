"""Preemption: who is sent away for a waiting gang, and where it will run then.

It is tried for a gang that waits for quota or capacity, after nothing was free for it; and where
the owner wants it so, for a running gang whose lost places nothing can fill: it asks for these as a
waiting gang of that many GPUs would. What leaves anyway (gangs already told to go, pods being
deleted) counts as free: nobody is sent away for places that come of themselves. No one is a
candidate twice (`candidacy`), or against the law (`preemption_policy`). Elastic gangs ask for their
smallest
size: they can grow later.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from drumline.scheduling.decisions import (
    Blocked,
    BlockReason,
    Preemption,
    Victim,
    VictimReason,
)
from drumline.scheduling.model import Admitted, Gang, PreemptionRule, Queue
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.placement.projection import Nomination, Projection
from drumline.scheduling.placement.search import Search
from drumline.scheduling.preemption.bounds import PreemptibleQuota, could_suffice
from drumline.scheduling.preemption.candidates import Candidates, Requester
from drumline.scheduling.preemption.consolidation import Consolidation, Consolidator
from drumline.scheduling.preemption.eviction_simulation import EvictionSimulation, EvictionUnit
from drumline.scheduling.preemption.relocation import carry_out
from drumline.scheduling.preemption.victims import least_victims
from drumline.scheduling.quota.preemption_policy import PreemptionClaim
from drumline.scheduling.rejections import Rejection, bounded, counted, named

HELPED_BY_LEAVING: Final = frozenset(
    {
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.USER_LIMIT,
    }
)
"""Only who waits for one of these can gain by others' leaving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRequest:
    """Places that a gang looks for in a pool, and what its queue may do to others for them."""

    gang: Gang
    rule: PreemptionRule
    pool: str
    size: int
    """Main pods of the whole gang."""
    gpus: int
    """Of the places that are looked for."""
    kept: Mapping[int, str] = field(default_factory=dict[int, str])
    """By position: nodes of a broken gang's other pods."""
    is_broken: bool = False
    """Whether it runs already and looks for its lost places."""

    @property
    def paid(self) -> int:
        """Main pods that it has already."""
        return sum(position >= self.gang.extras for position in self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimChoice:
    """A lawful set of victims for a quest."""

    cost: float
    quest: PreemptionRequest
    search: Search
    parts: Sequence[EvictionUnit]


class Preemptor:
    """Looks for victims, on the projected view."""

    def __init__(
        self, *, projection: Projection, candidacy: Candidates, consolidator: Consolidator
    ) -> None:
        self._projection = projection
        self._candidacy = candidacy
        self._consolidator = consolidator
        self._stocks: dict[str, PreemptibleQuota] = {}
        self._in_vain: set[Hashable] = set()
        """Questions asked without an answer since the last preemption."""

    def preempt(
        self, *, gang: Gang, queue: Queue, rejections: Mapping[str, Rejection]
    ) -> Preemption | None:
        """Move others, or send away the least there is, for a gang that was rejected.

        Args:
            gang: who waits.
            queue: its queue.
            rejections: what it waits for, by pool, in the order of trying.

        Returns:
            Who has to go or to move so that it can start; None if nothing helps.
        """
        moves = self._consolidator.make_room(gang=gang, rejections=rejections)
        if moves is not None:
            return self._rearrange(gang=gang, moves=moves)
        if queue.preemption == _NOBODY:
            return None
        size = gang.legal_sizes[0]
        gpus, rule = gang.gpus_at(size), queue.preemption
        quests = [
            PreemptionRequest(gang=gang, rule=rule, pool=pool, size=size, gpus=gpus)
            for pool, why in rejections.items()
            if why.reason in HELPED_BY_LEAVING
        ]
        found = [one for quest in quests if (one := self._find(quest))]
        if not found:
            return None
        best = min(found, key=lambda one: one.cost)
        self._send_away(best)
        nodes = self._places(best)
        self._projection.nominate(Nomination(gang=gang, pool=best.quest.pool, nodes=nodes))
        return _preemption(found=best, assignment=nodes)

    def repair(self, *, held: Admitted, queue: Queue, rejection: Rejection) -> Preemption | None:
        """Send away the least there is so that all lost places of a running gang can be filled."""
        gang, lost = held.gang, sorted(held.lost)
        if queue.preemption == _NOBODY or rejection.reason not in HELPED_BY_LEAVING:
            return None
        quest = PreemptionRequest(
            gang=gang,
            rule=queue.preemption,
            pool=held.pool,
            size=held.size,
            gpus=sum(gang.request_of(position).gpus for position in lost),
            kept=held.survivors,
            is_broken=True,
        )
        found = self._find(quest)
        if found is None:
            return None
        self._send_away(found)
        nodes = self._places(found)
        self._projection.nominate(
            Nomination(gang=gang, pool=held.pool, nodes=nodes, positions=tuple(lost))
        )
        self._candidacy.exclude((gang.uid,))
        places = held.survivors | dict(zip(lost, nodes, strict=True))
        assignment = tuple(places[position] for position in range(len(held.assignment)))
        return _preemption(found=found, assignment=assignment, replaced=tuple(lost))

    def waiting(self, nomination: Nomination) -> Blocked:
        """The answer to a gang whose places are kept while others leave them."""
        gang, held = nomination.gang, self._projection.in_the_way(nomination)
        keys = sorted(one.gang.key for one in held)
        who = f"{named(keys)} to save and leave" if keys else "pods to end that are being deleted"
        places = f"{counted(len(nomination.nodes), 'place')} in pool {nomination.pool}"
        return Blocked(
            key=gang.key,
            uid=gang.uid,
            reason=BlockReason.WAITING_FOR_VICTIMS,
            message=bounded(f"waits for {who}; {places} {_are(nomination)} kept for it"),
            blockers=tuple(keys),
            needed=nomination.gpus,
        )

    def _rearrange(self, *, gang: Gang, moves: Consolidation) -> Preemption:
        pool, plan = moves.pool, moves.plan
        carry_out(projection=self._projection, pool=pool, relocations=plan.relocations)
        self._projection.nominate(Nomination(gang=gang, pool=pool, nodes=plan.nodes))
        self._changed(one.uid for one in moves.movers)
        return _rearranged(gang=gang, moves=moves)

    def _changed(self, uids: Iterable[str]) -> None:
        """Nobody asks for these any more, and whoever found nothing may look again."""
        self._candidacy.exclude(uids)
        self._in_vain.clear()
        self._consolidator.forget()

    def _find(self, quest: PreemptionRequest) -> VictimChoice | None:
        effective, gang = self._projection.effective, quest.gang
        search = _search(cluster=effective, quest=quest)
        if search is None:
            return None
        question = (search.question, gang.queue, gang.priority, gang.user, quest.gpus)
        if question in self._in_vain:
            return None
        parts = None
        if self._could_suffice(cluster=effective, quest=quest, search=search):
            parts = self._least_victims(quest)
        if not parts:
            self._in_vain.add(question)
            return None
        return VictimChoice(
            cost=sum(one.cost for one in parts),
            quest=quest,
            search=self._projected(quest),
            parts=parts,
        )

    def _could_suffice(
        self, *, cluster: ClusterView, quest: PreemptionRequest, search: Search
    ) -> bool:
        """Whether there is enough to be had at all: most questions end here."""
        pool, quota = quest.pool, cluster.quota
        if pool not in self._stocks:
            roots = [branch.path[-1] for branch in quota.tree.branches]
            self._stocks[pool] = PreemptibleQuota(leaves=quota.holders(pool).leaves, roots=roots)
        with _asking(cluster=cluster, quest=quest) as claim:
            balance, leaf = quota.balance(pool), quota.tree.leaf_of[quest.gang.queue]
            most = self._stocks[pool].most(
                leaf=leaf,
                priority=quest.gang.priority,
                rule=quest.rule,
                claim=claim,
                holders=quota.holders(pool),
            )
            return could_suffice(
                search=search, balance=balance, leaf=leaf, gpus=quest.gpus, most=most
            )

    def _least_victims(self, quest: PreemptionRequest) -> list[EvictionUnit] | None:
        projected, search = self._projection.projected, self._projected(quest)
        with _asking(cluster=projected, quest=quest) as claim:
            trial = EvictionSimulation(search=search, claim=claim, gpus=quest.gpus)
            if trial.enough(search.ids):
                return None
            asked = Requester(
                gang=quest.gang, rule=quest.rule, pool=quest.pool, is_broken=quest.is_broken
            )
            candidates = self._candidacy.lawful(asked=asked, projected=projected, claim=claim)
            return least_victims(
                trial=trial,
                candidates=candidates,
                split=lambda one, wanted: self._candidacy.parts(
                    one, projected=projected, wanted=wanted
                ),
            )

    def _projected(self, quest: PreemptionRequest) -> Search:
        search = _search(cluster=self._projection.projected, quest=quest)
        if search is None:
            raise AssertionError(f"{quest.gang.key} could be searched for now and cannot soon")
        return search

    def _send_away(self, found: VictimChoice) -> None:
        """Count the victims as gone soon."""
        for one in _last_parts(found.parts):
            self._projection.dismiss(held=one.held, kept=one.kept)
        self._changed(one.uid for one in found.parts)

    def _places(self, found: VictimChoice) -> tuple[str, ...]:
        nodes = found.search.find()
        if nodes is None:
            key = found.quest.gang.key
            raise AssertionError(f"{key} was to be placed once its victims are gone")
        return tuple(nodes)


_NOBODY: Final = PreemptionRule()


def _search(*, cluster: ClusterView, quest: PreemptionRequest) -> Search | None:
    search = cluster.search(gang=quest.gang, pool=quest.pool, pods=quest.size, kept=quest.kept)
    return None if isinstance(search, Rejection) else search


@contextmanager
def _asking(*, cluster: ClusterView, quest: PreemptionRequest) -> Generator[PreemptionClaim]:
    """The claim of a quest; what its queue pays for lost places is no usage meanwhile."""
    gang, pool, quota = quest.gang, quest.pool, cluster.quota
    put_back = quota.hold(gang=gang, pool=pool, size=quest.paid) if quest.is_broken else None
    try:
        yield quota.claim(gang=gang, pool=pool, size=quest.size, rule=quest.rule)
    finally:
        if put_back:
            put_back()


def _last_parts(parts: Iterable[EvictionUnit]) -> list[EvictionUnit]:
    """Of each gang the last part that leaves; by key."""
    last: dict[str, EvictionUnit] = {}
    for one in parts:
        if one.uid not in last or last[one.uid].step < one.step:
            last[one.uid] = one
    return sorted(last.values(), key=lambda one: (one.held.gang.key, one.uid))


def _victims(parts: Iterable[EvictionUnit]) -> tuple[Victim, ...]:
    return tuple(
        Victim(
            key=one.held.gang.key,
            uid=one.uid,
            gpus=one.before + one.gpus,
            gpu_seconds_lost=0.0 if one.kept else one.held.gpu_seconds_at_risk,
            why=one.why,
            kept=one.kept,
        )
        for one in _last_parts(parts)
    )


def _rearranged(*, gang: Gang, moves: Consolidation) -> Preemption:
    view, nodes = moves.search.view, moves.plan.nodes
    depth, domain = view.tree.common([view.ordinal_of[name] for name in nodes])
    keys = named(sorted(one.held.gang.key for one in moves.movers))
    return Preemption(
        key=gang.key,
        uid=gang.uid,
        pool=moves.pool,
        assignment=nodes,
        victims=_movers(moves),
        level=view.tree.level_name(depth),
        domain=domain.path,
        message=bounded(
            f"{keys} to move within pool {moves.pool}, so that {gang.key} has"
            f" {counted(len(set(nodes)), 'node')}"
        ),
    )


def _movers(moves: Consolidation) -> tuple[Victim, ...]:
    found = (
        Victim(
            key=one.held.gang.key,
            uid=one.held.gang.uid,
            gpus=one.held.gpus,
            gpu_seconds_lost=one.held.gpu_seconds_at_risk,
            why=VictimReason.MOVED,
            moves_to=one.nodes,
            moves_to_pool=moves.pool,
        )
        for one in moves.plan.relocations
    )
    return tuple(sorted(found, key=lambda victim: (victim.key, victim.uid)))


def _preemption(
    *, found: VictimChoice, assignment: tuple[str, ...], replaced: tuple[int, ...] = ()
) -> Preemption:
    gang, view = found.quest.gang, found.search.view
    ordinals = [view.ordinal_of[name] for name in assignment if name in view.ordinal_of]
    depth, domain = view.tree.common(ordinals)
    victims = _victims(found.parts)
    return Preemption(
        key=gang.key,
        uid=gang.uid,
        pool=found.quest.pool,
        assignment=assignment,
        victims=victims,
        level=view.tree.level_name(depth),
        domain=domain.path,
        message=_message(found=found, victims=victims, nodes=assignment),
        replaced=replaced,
    )


def _message(*, found: VictimChoice, victims: Iterable[Victim], nodes: Sequence[str]) -> str:
    gang = found.quest.gang
    where = f"{counted(len(set(nodes)), 'node')} of pool {found.quest.pool}"
    texts = [_text(victim) for victim in victims]
    return bounded(f"{named(texts)} to leave {where} for {gang.key} (priority {gang.priority})")


def _text(victim: Victim) -> str:
    gpus = counted(victim.gpus, "GPU")
    if victim.kept:
        return (
            f"{victim.key} ({victim.why}, {gpus}, goes on with {counted(len(victim.kept), 'pod')})"
        )
    return (
        f"{victim.key} ({victim.why}, {gpus},"
        f" {victim.gpu_seconds_lost:.0f} GPU-seconds since its checkpoint)"
    )


def _are(nomination: Nomination) -> str:
    return "is" if len(nomination.nodes) == 1 else "are"
