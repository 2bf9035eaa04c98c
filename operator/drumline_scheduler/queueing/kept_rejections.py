"""Rejections of earlier cycles that still hold, by equivalence class.

Most of the gangs that wait in a full cluster are rejected again for the same reasons. A rejection
by a pool is repeated if everything that it was computed from is the same:

* the GPUs that the queue and the cohorts above it use, and the gangs of the queue;
* the rejection for nodes, which gangs of one shape share (`Placer`);
* if quota is missing too, what is free on the nodes of the gangs in the way (`quota_remedies`).

Pools, queues and policy are fixed: if they change, everything is dropped. Gangs whose rejection
depends on more are not kept: elastic gangs, gangs of sweeps, gangs with an answer of their own or
with a claim that one node or pod may use, and gangs of queues that preempt or limit their users.
Pools in which gangs leave or move are tried.

Example: ten thousand gangs of 100 classes and 16 shapes wait, and a node is cordoned. The nodes are
searched 16 times. If the results are the same, so are the rejections of all classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.model import Gang, Policy, PreemptionRule, Queue, WaitingRule
from drumline_scheduler.placement.placer import Placer
from drumline_scheduler.placement.pool_view import State, changes_since, state_of
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.placement.quota_remedies import GangsInTheWay, QuotaRemedyChecker
from drumline_scheduler.quota.usage import QueueUsage
from drumline_scheduler.rejections import Rejection

_NO_PREEMPTION: Final = PreemptionRule()


_Usage = tuple[tuple[int, ...], tuple[QueueUsage | None, ...]]
"""GPUs that a queue and the cohorts above it use, and gangs of queues, compared by identity."""


@dataclass(slots=True, kw_only=True)
class _RejectionByPool:
    """The rejection of a class by one pool, and what it was computed from."""

    rejection: Rejection
    quota: Rejection | None
    """The rejection for quota, before blockers on nodes were added. None: only nodes are short."""
    nodes: Rejection | None
    """The rejection for nodes. Of quota and nodes, only the blockers on nodes are shown. None: the
    gang has nodes, or they do not matter."""
    leaves: tuple[int, ...]
    """The queues whose gangs decided: its own, and those whose gangs may have to end."""
    usage: _Usage
    way: GangsInTheWay
    state: State
    """The last state of the pool in which all of this was right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRejection:
    """The answer to a class, and its rejections by pool in the order of trying."""

    answer: Rejection
    by_pool: Mapping[str, Rejection]
    pools: Mapping[str, _RejectionByPool]


class RejectionStore:
    """The rejections that one cycle keeps for the next one. Empty at first."""

    def __init__(self) -> None:
        self.by_class: dict[int, KeptRejection] = {}
        self._fixed: tuple[object, ...] = ()

    def keep_if_same(self, *fixed: object) -> None:
        """Drop everything if one of these objects is another one than in the last cycle."""
        before = self._fixed
        if len(fixed) != len(before) or any(
            old is not new for old, new in zip(before, fixed, strict=True)
        ):
            self.by_class.clear()
            self._fixed = fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRejections:
    """Repeats and keeps rejections in one cycle."""

    store: RejectionStore
    projection: Projection
    placer: Placer
    remedies: QuotaRemedyChecker
    is_used: bool
    """False if rejections depend on more than this module compares."""

    @staticmethod
    def are_used(policy: Policy) -> bool:
        """Return whether a policy lets rejections depend on nothing else."""
        is_simple = policy.waiting is WaitingRule.BEST_EFFORT and policy.moves is None
        return is_simple and not policy.preemption_delay_seconds

    def recall(self, gang: Gang, *, number: int) -> KeptRejection | None:
        """Return the rejection of the gang's class, if it still holds.

        Args:
            gang: the gang whose turn it is.
            number: its equivalence class.
        """
        kept = self.store.by_class.get(number)
        if kept is None or not self.is_used or self.projection.nominated:
            return None
        # A gang that fits in one pool needs no reasons of others, which a search does not ask for.
        if all(self._is_closed(each, gang, pool) for pool, each in kept.pools.items()) and all(
            self._holds(each, gang=gang, pool=pool) for pool, each in kept.pools.items()
        ):
            return kept
        del self.store.by_class[number]
        return None

    def keep(
        self,
        gang: Gang,
        *,
        queue: Queue,
        number: int,
        by_pool: Mapping[str, Rejection],
        answer: Rejection,
    ) -> None:
        """Keep the rejection of a gang's class, if it can be repeated.

        Args:
            gang: a gang of the class.
            queue: its queue.
            number: the equivalence class.
            by_pool: the rejections by pool, in the order of trying.
            answer: the rejection that the gang gets.
        """
        if (
            not self.is_used
            or self.projection.nominated
            or gang.sizes
            or gang.sweep
            or gang.is_foreign
            or any(volume.claim for volume in gang.volumes)
            or queue.limits_users
            or queue.preemption != _NO_PREEMPTION
        ):
            return
        pools: dict[str, _RejectionByPool] = {}
        for pool, rejection in by_pool.items():
            made = self._made(gang, pool=pool, rejection=rejection)
            if made is None:
                return
            pools[pool] = made
        self.store.by_class[number] = KeptRejection(answer=answer, by_pool=by_pool, pools=pools)

    def _made(self, gang: Gang, *, pool: str, rejection: Rejection) -> _RejectionByPool | None:
        """Return what a rejection was computed from; None if that was something else."""
        current, pods = self.projection.current, gang.nodes
        view, search = current.pools[pool], self.remedies.search(gang=gang, pool=pool, pods=pods)
        state = state_of(view)
        if search is None or state is None or gang.uid in view.allocations:
            return None
        nodes = self.placer.rejection(search)
        quota = self.projection.exhausted(gang=gang, pool=pool, size=pods)
        # 1. Check that the rejection is the one that these two make.
        made = quota or nodes
        if quota is not None and self.remedies.are_nodes_asked(quota):
            if nodes is not None:
                made = self.remedies.completed(quota, search)
            elif not self.placer.has_room(search):
                return None
        if rejection is not made or not self.placer.is_whole(search):
            return None
        # 2. Note what it depends on.
        leaves = (current.quota.tree.leaf_of[gang.queue],)
        if quota is not None:
            leaves = current.quota.searched(gang=gang, pool=pool, size=pods)
            nodes = nodes if self.remedies.are_nodes_asked(quota) else None
        keys = (*(quota.blockers if quota else ()), *(nodes.blockers if nodes else ()))
        return _RejectionByPool(
            rejection=rejection,
            quota=quota,
            nodes=nodes,
            leaves=leaves,
            usage=self._usage(gang, pool=pool, leaves=leaves),
            way=GangsInTheWay.of(search, keys=keys),
            state=state,
        )

    def _is_closed(self, kept: _RejectionByPool, gang: Gang, pool: str) -> bool:
        """Return whether a pool still has no quota for a gang, or no room."""
        view = self.projection.current.pools[pool]
        if state_of(view) is None or gang.uid in view.allocations:
            return False
        if kept.usage != self._usage(gang, pool=pool, leaves=kept.leaves):
            return False
        if kept.quota is not None:
            return True
        search = self.remedies.search(gang=gang, pool=pool, pods=gang.nodes)
        return search is None or not self.placer.has_room(search)

    def _holds(self, kept: _RejectionByPool, *, gang: Gang, pool: str) -> bool:
        """Return whether the rejection of a closed pool is the same."""
        view, pods = self.projection.current.pools[pool], gang.nodes
        state = state_of(view)
        if kept.quota is None:
            return self.placer.find(gang=gang, pool=pool, pods=pods) is kept.nodes
        # Gangs that can never fit do not wait for quota.
        if kept.state != state and self.placer.infeasible(gang=gang, pool=pool, pods=pods):
            return False
        if not self.remedies.are_nodes_asked(kept.quota):
            return True
        if kept.nodes is None:
            search = self.remedies.search(gang=gang, pool=pool, pods=pods)
            return search is not None and self.placer.has_room(search)
        # A rejection for quota shows the blockers of the rejection for nodes, and not its figures.
        nodes = self.placer.find(gang=gang, pool=pool, pods=pods)
        if not isinstance(nodes, Rejection) or nodes.blockers != kept.nodes.blockers:
            return False
        if state is not None and kept.state != state:
            ordinals, keys = changes_since(view, kept.state)
            if not kept.way.is_same(nodes=ordinals, keys=keys):
                again = self.remedies.complete(kept.quota, gang=gang, pool=pool, pods=pods)
                if again is not kept.rejection:
                    return False
            kept.state = state
        return True

    def _usage(self, gang: Gang, *, pool: str, leaves: tuple[int, ...]) -> _Usage:
        """Return the usage that limits a gang, and the gangs of some queues."""
        ledger = self.projection.current.quota
        account = ledger.account(pool)
        figures = account.cohorts.usage
        path = account.cohorts.paths[ledger.tree.leaf_of[gang.queue]]
        gangs = tuple(map(account.usage.gangs, leaves))
        return tuple([figures[branch] for branch in path]), gangs
