"""Preemption: who is sent away for a waiting gang, and where it will run then.

It is tried for a gang that waits for quota or capacity, after nothing was free for it. What leaves
anyway (gangs already told to go, pods being deleted) counts as free: nobody is sent away for
places that come of themselves. No one is a candidate twice, within its queue's minimum runtime, or
against `claim`. Elastic gangs ask for their smallest size: they can grow later.

Costs are GPU-seconds: of work since the last verified checkpoint, of the restart, and for each
step of priority among the candidates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drumline.scheduling.claim import Claim
from drumline.scheduling.decisions import (
    Blocked,
    BlockReason,
    Preemption,
    Victim,
    VictimReason,
)
from drumline.scheduling.horizon import Horizon, Nomination
from drumline.scheduling.model import (
    Admitted,
    Gang,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Snapshot,
    WithinQueue,
)
from drumline.scheduling.refusals import Refusal, bounded, counted, named
from drumline.scheduling.search import Search
from drumline.scheduling.victims import Candidate, Trial, least_victims

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
class Found:
    """A lawful set of victims in one pool."""

    cost: float
    pool: str
    search: Search
    victims: Sequence[Candidate]


class Preemptor:
    """Looks for victims, on the picture of soon."""

    def __init__(
        self,
        *,
        horizon: Horizon,
        snapshot: Snapshot,
        queues: Mapping[str, Queue],
        policy: Policy,
        now: float,
    ) -> None:
        self._horizon = horizon
        self._queues = queues
        self._policy = policy
        self._now = now
        self._running: dict[str, dict[str, Admitted]] = {}
        for held in snapshot.admitted:
            if held.preemptible and not held.leaving:
                self._running.setdefault(held.pool, {})[held.gang.uid] = held
        self._in_vain: set[tuple[Hashable, str, int, str]] = set()
        """Questions asked without an answer since the last preemption."""
        self.retry_at: list[float] = []
        """When minimum runtimes end that protected somebody."""

    def preempt(
        self, *, gang: Gang, queue: Queue, refusals: Mapping[str, Refusal]
    ) -> Preemption | None:
        """Send away the least there is for a gang that was refused, if that lets it start.

        Args:
            gang: who waits.
            queue: its queue.
            refusals: what it waits for, by pool, in the order of trying.
        """
        if queue.preemption == _NOBODY:
            return None
        pools = [pool for pool, why in refusals.items() if why.reason in HELPED_BY_LEAVING]
        found = [one for pool in pools if (one := self._find(gang=gang, queue=queue, pool=pool))]
        if not found:
            return None
        return self._carry_out(gang=gang, found=min(found, key=lambda one: one.cost))

    def exempt(self, held: Admitted) -> None:
        """Send a gang away in no case: this cycle has just given it something."""
        self._running.get(held.pool, {}).pop(held.gang.uid, None)

    def waiting(self, nomination: Nomination) -> Blocked:
        """The answer to a gang whose places are kept while others leave them."""
        gang, held = nomination.gang, self._horizon.in_the_way(nomination)
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

    def _find(self, *, gang: Gang, queue: Queue, pool: str) -> Found | None:
        soon, pods = self._horizon.soon, gang.legal_sizes[0]
        search = soon.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Refusal):
            return None
        question = (search.question, gang.queue, gang.priority, gang.user)
        if question in self._in_vain:
            return None
        claim = soon.quota.claim(gang=gang, pool=pool, size=pods, rule=queue.preemption)
        trial = Trial(search=search, claim=claim)
        victims = None
        if not trial.enough(search.ids):
            candidates = self._candidates(gang=gang, queue=queue, pool=pool, claim=claim)
            if _could_suffice(trial=trial, candidates=candidates):
                victims = least_victims(trial=trial, candidates=candidates)
        if not victims:
            self._in_vain.add(question)
            return None
        cost = sum(one.cost for one in victims)
        return Found(cost=cost, pool=pool, search=search, victims=victims)

    def _candidates(
        self, *, gang: Gang, queue: Queue, pool: str, claim: Claim
    ) -> Sequence[Candidate]:
        """Whom the law allows to be sent away, each alone considered; sorted by uid."""
        soon, rule = self._horizon.soon, queue.preemption
        leaf_of, holders = soon.quota.tree.leaf_of, soon.views[pool].holders
        allowed: list[tuple[Admitted, VictimReason]] = []
        for _, held in sorted(self._running.get(pool, {}).items()):
            lower = rule.within_queue is not WithinQueue.NEVER and (
                held.gang.priority < gang.priority
            )
            why = claim.reason(leaf=leaf_of[held.gang.queue], gpus=held.gpus, lower_priority=lower)
            elsewhere = why is not VictimReason.LOWER_PRIORITY
            if elsewhere and rule.reclaim is Reclaim.NEVER:
                continue
            if why is not None and not self._protected(held):
                allowed.append((held, why))
        own = sum(held.gpus for held, why in allowed if why is VictimReason.LOWER_PRIORITY)
        allowed = [
            (held, why)
            for held, why in allowed
            if why is VictimReason.LOWER_PRIORITY
            or claim.may_reclaim(leaf=leaf_of[held.gang.queue], gpus=held.gpus, freed=own)
        ]
        steps = sorted({held.gang.priority for held, _ in allowed})
        return [
            Candidate(
                held=held,
                holder=holders[held.gang.uid],
                leaf=leaf_of[held.gang.queue],
                cost=self._cost(held=held, step=steps.index(held.gang.priority)),
                why=why,
            )
            for held, why in allowed
        ]

    def _protected(self, held: Admitted) -> bool:
        queue = self._queues.get(held.gang.queue)
        until = held.admitted_at + (queue.min_runtime_seconds if queue else 0.0)
        if until <= self._now:
            return False
        self.retry_at.append(until)
        return True

    def _cost(self, *, held: Admitted, step: int) -> float:
        seconds = self._policy.restart_seconds + step * self._policy.priority_seconds
        return held.gpu_seconds_at_risk + (held.gpus or held.size) * seconds

    def _carry_out(self, *, gang: Gang, found: Found) -> Preemption:
        """Count the victims as leaving and keep the gang's places from here on."""
        horizon, search, pool = self._horizon, found.search, found.pool
        for one in found.victims:
            del self._running[pool][one.held.gang.uid]
        horizon.dismiss(one.held for one in found.victims)
        self._in_vain.clear()
        nodes = search.find()
        if nodes is None:
            raise AssertionError(f"{gang.key} was to be placed once its victims are gone")
        horizon.nominate(Nomination(gang=gang, pool=pool, nodes=tuple(nodes)))
        depth, domain = search.view.tree.common([search.view.ordinal_of[n] for n in nodes])
        return Preemption(
            key=gang.key,
            uid=gang.uid,
            pool=pool,
            assignment=tuple(nodes),
            victims=_victims(found.victims),
            level=search.view.tree.level_name(depth),
            domain=domain.path,
            message=_message(gang=gang, found=found, nodes=nodes),
        )


_NOBODY: Final = PreemptionRule()


def _could_suffice(*, trial: Trial, candidates: Sequence[Candidate]) -> bool:
    """Whether there are enough GPUs among the candidates at all: most questions end here."""
    search = trial.search
    each = search.gang.per_pod.gpus
    if not candidates or not each:
        return bool(candidates)
    freed = sum(one.held.gpus for one in candidates)
    free = max((search.index.gpus[search.depth][i] for i in search.ids), default=0)
    return free + freed >= search.demand.pods * each


def _victims(found: Iterable[Candidate]) -> tuple[Victim, ...]:
    victims = (
        Victim(
            key=one.held.gang.key,
            uid=one.held.gang.uid,
            gpus=one.held.gpus,
            gpu_seconds_lost=one.held.gpu_seconds_at_risk,
            why=one.why,
        )
        for one in found
    )
    return tuple(sorted(victims, key=lambda victim: (victim.key, victim.uid)))


def _message(*, gang: Gang, found: Found, nodes: Sequence[str]) -> str:
    texts = [
        f"{victim.key} ({victim.why}, {counted(victim.gpus, 'GPU')},"
        f" {victim.gpu_seconds_lost:.0f} GPU-seconds since its checkpoint)"
        for victim in _victims(found.victims)
    ]
    where = f"{counted(len(set(nodes)), 'node')} of pool {found.pool}"
    return bounded(f"{named(texts)} to leave {where} for {gang.key} (priority {gang.priority})")


def _are(nomination: Nomination) -> str:
    return "is" if len(nomination.nodes) == 1 else "are"
