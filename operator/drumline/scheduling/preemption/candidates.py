"""Running gangs as candidates: whom the law lets go for somebody, and what each would cost.

Costs are GPU-seconds: of work since the last verified checkpoint, of the restart, and for each
step of priority among the candidates. Who leaves already, was marked not preemptible, has not run
as long as its queue's minimum runtime, or got something in this cycle is nobody's candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from drumline.scheduling.decisions import VictimReason
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
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.preemption.eviction_simulation import EvictionUnit
from drumline.scheduling.preemption.surplus import has_surplus, split
from drumline.scheduling.quota.preemption_policy import PreemptionClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Who asks, as far as it matters to those who might go."""

    gang: Gang
    rule: PreemptionRule
    pool: str
    is_broken: bool = False
    """Whether it asks for lost places: then it takes none of others that may yet be repaired."""


class Candidates:
    """Who may be sent away or moved in this cycle."""

    def __init__(
        self, *, snapshot: Snapshot, queues: Mapping[str, Queue], policy: Policy, now: float
    ) -> None:
        self._snapshot = snapshot
        self._queues = queues
        self._policy = policy
        self._now = now
        self._out: set[str] = set()
        """Uids of those that are no candidates any more."""
        self._pools: dict[str, list[Admitted]] = {}
        self._movable: dict[str, list[EvictionUnit]] = {}
        self._known: dict[str, EvictionUnit] = {}
        """By uid: the part as which a gang was last a candidate."""
        self.retry_at: list[float] = []
        """When minimum runtimes end that protected somebody."""

    def exclude(self, uids: Iterable[str]) -> None:
        """Let nobody ask for these gangs any more."""
        self._out.update(uids)

    def include(self, uids: Iterable[str]) -> None:
        """Let them be asked for again."""
        self._out.difference_update(uids)

    def running(self, pool: str) -> list[Admitted]:
        """Those of a pool that may be asked for at all."""
        if not self._pools:
            self._pools = {one.name: [] for one in self._snapshot.pools}
            for held in self._snapshot.admitted:
                if held.preemptible and not held.leaving and held.pool in self._pools:
                    self._pools[held.pool].append(held)
        if not self._out:
            return self._pools.get(pool, [])
        return [held for held in self._pools.get(pool, ()) if held.gang.uid not in self._out]

    def lawful(
        self, *, asked: Requester, projected: ClusterView, claim: PreemptionClaim
    ) -> list[EvictionUnit]:
        """Whom the law allows to be sent away, each alone considered."""
        leaf_of = projected.quota.tree.leaf_of
        allowed = self._allowed(asked=asked, projected=projected, claim=claim)
        own = sum(gpus for _, gpus, why in allowed if why is VictimReason.LOWER_PRIORITY)
        allowed = [
            (held, gpus, why)
            for held, gpus, why in allowed
            if why is VictimReason.LOWER_PRIORITY
            or claim.may_reclaim(leaf=leaf_of[held.gang.queue], gpus=gpus, freed=own)
        ]
        ladder = sorted({held.gang.priority for held, _, _ in allowed})
        step_of = {priority: step for step, priority in enumerate(ladder)}
        holders = projected.pools[asked.pool].holders
        found: list[EvictionUnit] = []
        for held, gpus, why in allowed:
            uid, seconds = held.gang.uid, self._seconds(step_of[held.gang.priority])
            part = self._known.get(uid)
            if part is None or part.seconds != seconds or part.why is not why:
                part = EvictionUnit(
                    held=held,
                    uid=uid,
                    holder=holders[uid],
                    leaf=leaf_of[held.gang.queue],
                    gpus=gpus,
                    cost=held.gpu_seconds_at_risk + (gpus or held.size) * seconds,
                    seconds=seconds,
                    why=why,
                )
                self._known[uid] = part
            found.append(part)
        return found

    def parts(
        self, whole: EvictionUnit, *, projected: ClusterView, wanted: Callable[[int], bool]
    ) -> Sequence[EvictionUnit]:
        """What a candidate may give up, part by part; all of it at once if it has no surplus."""
        if not self._policy.surplus or not has_surplus(whole.held):
            return (whole,)
        return split(whole, view=projected.pools[whole.held.pool], wanted=wanted)

    def movable(self, *, pool: str, projected: ClusterView) -> list[EvictionUnit]:
        """Those that may be moved within a pool, with what that costs."""
        if pool not in self._movable:
            self._movable[pool] = self._all_movable(pool=pool, projected=projected)
        return [one for one in self._movable[pool] if one.uid not in self._out]

    def _all_movable(self, *, pool: str, projected: ClusterView) -> list[EvictionUnit]:
        leaf_of, holders = projected.quota.tree.leaf_of, projected.pools[pool].holders
        return [
            EvictionUnit(
                held=held,
                uid=held.gang.uid,
                holder=holders[held.gang.uid],
                leaf=leaf_of[held.gang.queue],
                gpus=held.gpus,
                cost=self.moving_costs(held),
                seconds=self._policy.restart_seconds,
                why=VictimReason.MOVED,
            )
            for held in self.running(pool)
            if not (held.lost or held.giving_up or self._is_protected(held))
        ]

    def moving_costs(self, held: Admitted) -> float:
        """GPU-seconds that are lost when a gang saves, leaves and starts again."""
        return held.gpu_seconds_at_risk + (held.gpus or held.size) * self._policy.restart_seconds

    def _allowed(
        self, *, asked: Requester, projected: ClusterView, claim: PreemptionClaim
    ) -> list[tuple[Admitted, int, VictimReason]]:
        """Each candidate, its GPUs, and why it may go."""
        rule, priority = asked.rule, asked.gang.priority
        within = rule.within_queue is not WithinQueue.NEVER
        leaf_of = projected.quota.tree.leaf_of
        gpus_of = {one.gang.uid: one.gpus for one in projected.quota.holders(asked.pool).all()}
        reasons: dict[tuple[str, int, bool], VictimReason | None] = {}
        found: list[tuple[Admitted, int, VictimReason]] = []
        for held in self.running(asked.pool):
            if asked.is_broken and held.lost:
                continue
            gang = held.gang
            gpus = gpus_of[gang.uid]
            lower = within and gang.priority < priority
            key = (gang.queue, gpus, lower)
            if key not in reasons:
                why = claim.reason(leaf=leaf_of[gang.queue], gpus=gpus, lower_priority=lower)
                reclaims = why is not None and why is not VictimReason.LOWER_PRIORITY
                reasons[key] = None if reclaims and rule.reclaim is Reclaim.NEVER else why
            why = reasons[key]
            if why is not None and not self._is_protected(held):
                found.append((held, gpus, why))
        return found

    def _seconds(self, step: int) -> float:
        return self._policy.restart_seconds + step * self._policy.priority_seconds

    def _is_protected(self, held: Admitted) -> bool:
        queue = self._queues.get(held.gang.queue)
        if queue is None or not queue.min_runtime_seconds:
            return False
        until = held.admitted_at + queue.min_runtime_seconds
        if until <= self._now:
            return False
        self.retry_at.append(until)
        return True
