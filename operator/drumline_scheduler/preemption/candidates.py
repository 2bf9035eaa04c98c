"""Candidates: the running gangs that the preemption policy permits as victims, and their costs.

The cost of a victim is in GPU-seconds: its work since the last verified checkpoint, plus, for each
of its GPUs, the restart and a penalty for each step of priority. A step is a distinct priority
among the candidates, so the cost does not depend on how far apart the numbers are:

    cost = gpu_seconds_at_risk + gpus x (restart_seconds + step x priority_seconds)

Example, with 60 seconds for each: candidates of priorities 0, 0 and 1000 have the steps 0, 0 and 1.
A gang of 8 GPUs with priority 1000 and 100 GPU-seconds at risk costs 100 + 8 x (60 + 60) = 1060.

These gangs are never candidates: gangs that already leave, that are not preemptible, that have an
override, that have not run for their queue's minimum runtime, or that this cycle has placed, moved
or evicted. A gang that reached its `PreemptionLimit` is exempt for gangs of its own queue and for
moves, but not for reclaim. Otherwise its owner could protect borrowed GPUs by preempting it with
other gangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.model import (
    Admitted,
    Gang,
    Policy,
    PreemptionRule,
    Reclaim,
    Snapshot,
    WithinQueue,
)
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit
from drumline_scheduler.preemption.surplus import has_surplus, split_surplus
from drumline_scheduler.quota.preemption_policy import PreemptionClaim
from drumline_scheduler.quota.usage_budgets import Budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """The properties of a preemptor that decide which gangs are its candidates."""

    gang: Gang
    rule: PreemptionRule
    pool: str
    is_broken: bool = False
    """True if the gang is being repaired. Other broken gangs are not candidates then."""


class Candidates:
    """The gangs that may be evicted or moved in this cycle.

    Args:
        snapshot: state of the cluster.
        budgets: usage budgets of the queues.
        policy: limits of preemption and moves.
        now: Unix time in seconds.
    """

    def __init__(self, *, snapshot: Snapshot, budgets: Budgets, policy: Policy, now: float) -> None:
        self._snapshot = snapshot
        self._queues = {queue.name: queue for queue in snapshot.queues}
        self._budgets = budgets
        self._policy = policy
        self._now = now
        self._out: set[str] = set()
        """Uids of gangs that are excluded from the candidates."""
        self.only: frozenset[str] | None = None
        """Uids of the only gangs that may be candidates. None: all."""
        self._parts = {pool.name: pool.parts_per_gpu for pool in snapshot.pools}
        self._pools: dict[str, list[Admitted]] = {}
        self._movable: dict[str, list[EvictionUnit]] = {}
        self._known: dict[str, EvictionUnit] = {}
        """Unit of a gang when it was last a candidate, by uid."""
        self.retry_at: list[float] = []
        """Times at which the minimum runtimes and exemptions end that protected gangs."""
        self._exempt: dict[str, Admitted] = {}

    def exclude(self, uids: Iterable[str]) -> None:
        """Remove gangs from the candidates."""
        self._out.update(uids)

    def readmit(self, uids: Iterable[str]) -> None:
        """Undo `exclude`."""
        self._out.difference_update(uids)

    def take_exempt(self) -> list[Admitted]:
        """Return the gangs that were permitted but exempt since the last call, by key."""
        if not self._exempt:  # asked for each gang in line
            return []
        exempt, self._exempt = self._exempt, {}
        return [exempt[key] for key in sorted(exempt)]

    def running(self, pool: str) -> list[Admitted]:
        """Return the running gangs of a pool that may be candidates at all."""
        if not self._pools:
            self._pools = {known.name: [] for known in self._snapshot.pools}
            for held in self._snapshot.admitted:
                free = held.preemptible and held.gang.override is None
                if free and not held.leaving and held.pool in self._pools:
                    self._pools[held.pool].append(held)
        running = self._pools.get(pool, [])
        if self.only is not None:
            running = [held for held in running if held.gang.uid in self.only]
        if not self._out:
            return running
        return [held for held in running if held.gang.uid not in self._out]

    def permitted(
        self, *, requester: Requester, projected: ClusterView, claim: PreemptionClaim
    ) -> list[EvictionUnit]:
        """Return the gangs that the preemption policy permits as victims, each considered alone.

        Args:
            requester: the preemptor.
            projected: the projected view.
            claim: the preemptor's claim to quota, without victims.
        """
        leaf_of = projected.quota.tree.leaf_of
        # 1. Gangs that the rule of the requester's queue permits, and why.
        allowed = self._allowed(requester=requester, projected=projected, claim=claim)
        # 2. Without those of other queues that could not be reclaimed even if all gangs of lower
        #    priority of the requester's own queue were evicted.
        own = sum(gpus for _, gpus, why in allowed if why is VictimReason.LOWER_PRIORITY)
        allowed = [
            (held, gpus, why)
            for held, gpus, why in allowed
            if why is VictimReason.LOWER_PRIORITY
            or claim.may_reclaim(leaf=leaf_of[held.gang.queue], gpus=gpus, freed=own)
        ]
        # 3. Their costs. A unit of the last search is used again while its cost is the same.
        ladder = sorted({held.gang.priority for held, _, _ in allowed})
        step_of = {priority: step for step, priority in enumerate(ladder)}
        allocations = projected.pools[requester.pool].allocations
        units: list[EvictionUnit] = []
        for held, gpus, why in allowed:
            uid = held.gang.uid
            seconds = self._seconds(step_of[held.gang.priority]) / self._parts[held.pool]
            unit = self._known.get(uid)
            if unit is None or unit.seconds != seconds or unit.why is not why:
                unit = EvictionUnit(
                    held=held,
                    uid=uid,
                    allocation=allocations[uid],
                    leaf=leaf_of[held.gang.queue],
                    gpus=gpus,
                    cost=held.gpu_seconds_at_risk + (gpus or held.size) * seconds,
                    seconds=seconds,
                    why=why,
                )
                self._known[uid] = unit
            units.append(unit)
        return units

    def split(
        self, whole: EvictionUnit, *, projected: ClusterView, wanted: Callable[[int], bool]
    ) -> Sequence[EvictionUnit]:
        """Return the eviction units of a candidate; the whole gang if it has no surplus.

        Args:
            whole: the gang with its surplus.
            projected: the cluster after all evictions in progress.
            wanted: whether an eviction on the node with this ordinal helps.
        """
        if not self._policy.surplus or not has_surplus(whole.held):
            return (whole,)
        return split_surplus(whole, view=projected.pools[whole.held.pool], wanted=wanted)

    def movable(self, *, pool: str, projected: ClusterView) -> list[EvictionUnit]:
        """Return the gangs of a pool that may be moved, with the cost of a move."""
        if pool not in self._movable:
            self._movable[pool] = self._all_movable(pool=pool, projected=projected)
        return [unit for unit in self._movable[pool] if unit.uid not in self._out]

    def _all_movable(self, *, pool: str, projected: ClusterView) -> list[EvictionUnit]:
        leaf_of, allocations = projected.quota.tree.leaf_of, projected.pools[pool].allocations
        movable: list[EvictionUnit] = []
        for held in self.running(pool):
            with deciding(held.gang, Stage.MOVE):
                if self._may_move(held):
                    movable.append(
                        EvictionUnit(
                            held=held,
                            uid=held.gang.uid,
                            allocation=allocations[held.gang.uid],
                            leaf=leaf_of[held.gang.queue],
                            gpus=held.gpus,
                            cost=self.moving_costs(held),
                            seconds=self._policy.restart_seconds / self._parts[pool],
                            why=VictimReason.MOVED,
                        )
                    )
        return movable

    def _may_move(self, held: Admitted) -> bool:
        return (
            not (held.lost or held.giving_up or held.is_foreign or self._is_protected(held))
            and not held.gang.refusal  # it could not start again
            and not (held.gang.surplus or held.gang.surplus_of)  # they would move one by one
            and not self._is_exempt(held)
            and self._budgets.rejection(held.gang) is None  # it could not start again
        )

    def moving_costs(self, held: Admitted) -> float:
        """Return the GPU-seconds that a gang loses when it restarts on other nodes."""
        seconds = self._policy.restart_seconds / self._parts.get(held.pool, 1)
        return held.gpu_seconds_at_risk + (held.gpus or held.size) * seconds

    def _allowed(
        self, *, requester: Requester, projected: ClusterView, claim: PreemptionClaim
    ) -> list[tuple[Admitted, int, VictimReason]]:
        """Return the gangs that the queue's rule permits, with their GPUs and the reason."""
        rule, priority, pool = requester.rule, requester.gang.priority, requester.pool
        within = rule.within_queue is not WithinQueue.NEVER
        leaf_of = projected.quota.tree.leaf_of
        gpus_of = {usage.gang.uid: usage.gpus for usage in projected.quota.usage(pool).all()}
        # The reason depends only on queue, GPUs and priority, so thousands
        # of gangs share a few answers.
        reasons: dict[tuple[str, int, bool], VictimReason | None] = {}
        allowed: list[tuple[Admitted, int, VictimReason]] = []
        for held in self.running(pool):
            if requester.is_broken and held.lost:
                continue
            gang = held.gang
            gpus = gpus_of[gang.uid]
            lower = gang.priority < priority and not held.is_foreign
            lower &= within or gang.queue != requester.gang.queue
            if claim.overrides and held.is_foreign:
                continue
            key = (gang.queue, gpus, lower)
            if key not in reasons:
                why = claim.reason(leaf=leaf_of[gang.queue], gpus=gpus, lower_priority=lower)
                reclaims = why is not None and why is not VictimReason.LOWER_PRIORITY
                reasons[key] = None if reclaims and rule.reclaim is Reclaim.NEVER else why
            why = reasons[key]
            if why is None:
                continue
            with deciding(gang, Stage.PREEMPT):
                # An exempt gang is remembered for the message. Reclaim ignores the exemption.
                if why is VictimReason.LOWER_PRIORITY and self._is_exempt(held):
                    self._exempt[gang.key] = held
                elif not self._is_protected(held):
                    allowed.append((held, gpus, why))
        return allowed

    def _seconds(self, step: int) -> float:
        return self._policy.restart_seconds + step * self._policy.priority_seconds

    def _is_protected(self, held: Admitted) -> bool:
        """Return whether a gang has not run for its queue's minimum runtime."""
        queue = self._queues.get(held.gang.queue)
        if queue is None or not queue.min_runtime_seconds:
            return False
        until = held.admitted_at + queue.min_runtime_seconds
        if until <= self._now:
            return False
        self.retry_at.append(until)
        return True

    def _is_exempt(self, held: Admitted) -> bool:
        """Return whether a gang reached the preemption limit."""
        limit = self._policy.preemption_limit
        until = None if limit is None else limit.exempt_until(held.preempted_at)
        if until is None or until <= self._now:
            return False
        self.retry_at.append(until)
        return True
