"""Where a cycle's gangs come forward one after the other: may it, does it fit, where, else why not.

The desk owns the cycle's mutable state: the view of each pool, the quota book, one slot index per
shape, the refusals already given to a shape, and (strict rule) who holds others back. Capacity only
shrinks while gangs come forward, so a refusal given to a shape stays true for the whole cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from drumline.scheduling.decisions import Blocked, BlockReason, Placed
from drumline.scheduling.eligibility import admission_of
from drumline.scheduling.explain import Search, never_fits, why_blocked
from drumline.scheduling.model import Admitted, Gang, Policy, Queue, Snapshot, WaitingRule
from drumline.scheduling.placement import Demand, Places, find_places
from drumline.scheduling.quota import QuotaBook, entry_refusal, open_pools, queue_not_found
from drumline.scheduling.refusals import Refusal, counted, named
from drumline.scheduling.slots import Shape, SlotIndex
from drumline.scheduling.view import PoolView, build_views

_WAITS_FOR_CAPACITY: Final = frozenset(
    {
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
    }
)
_NEAREST_FIRST: Final = (
    BlockReason.INSUFFICIENT_GPUS,
    BlockReason.INSUFFICIENT_RESOURCES,
    BlockReason.TOPOLOGY_DOES_NOT_FIT,
    BlockReason.QUOTA_EXHAUSTED,
    BlockReason.BEHIND_HIGHER_PRIORITY,
    BlockReason.NODES_UNAVAILABLE,
    BlockReason.EXCEEDS_CLUSTER,
    BlockReason.EXCEEDS_QUOTA,
    BlockReason.NO_QUOTA_IN_POOL,
    BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
)
"""Of several pools' refusals, the one that is nearest to a start is told."""


class Desk:
    """One cycle's state and the two questions put to it."""

    def __init__(
        self, *, snapshot: Snapshot, pending: Iterable[Gang], policy: Policy, now: float
    ) -> None:
        self._pools = snapshot.pools
        self._queues = {queue.name: queue for queue in snapshot.queues}
        self._views = build_views(snapshot=snapshot, pending=pending)
        self._quota = QuotaBook(admitted=snapshot.admitted)
        self._policy = policy
        self._now = now
        self._indexes: dict[tuple[str, Shape], SlotIndex] = {}
        self._refused: dict[tuple[str, Shape, Demand], Refusal] = {}
        self._never: dict[tuple[str, Shape, Demand], Refusal | None] = {}
        self._held_back: dict[tuple[str | None, str], Blocked] = {}
        """By (queue, pool), with None for every queue: the first gang that waits there."""

    def admit(self, gang: Gang) -> Placed | Blocked:
        """Places for a waiting gang, in the first pool that has them, or why not."""
        queue = self._queues.get(gang.queue)
        if queue is None:
            return queue_not_found(gang).of(gang)
        refusal = entry_refusal(gang=gang, queue=queue)
        if refusal:
            return refusal.of(gang)
        pools = open_pools(gang=gang, queue=queue, pools=self._pools)
        if isinstance(pools, Refusal):
            return pools.of(gang)
        if gang.retry_at > self._now:
            return _backing_off(gang).of(gang)
        refusals: dict[str, Refusal] = {}
        for pool in pools:
            outcome = self._admit_to(gang=gang, queue=queue, pool=pool)
            if isinstance(outcome, Placed):
                return outcome
            refusals[pool] = outcome
        blocked = _nearest(refusals).of(gang)
        self._hold_back(gang=gang, refusals=refusals, blocked=blocked)
        return blocked

    def repair(self, admitted: Admitted) -> Placed | Blocked:
        """Replacements for the lost places of an admitted gang; the others stay where they are."""
        gang, view = admitted.gang, self._views.get(admitted.pool)
        if view is None:
            return Refusal(
                reason=BlockReason.POOL_NOT_FOUND,
                message=f"pool {admitted.pool}, in which it was placed, does not exist any more",
            ).of(gang)
        if gang.retry_at > self._now:
            return _backing_off(gang).of(gang)
        beside = tuple(
            view.ordinal_of[name]
            for index, name in enumerate(admitted.assignment)
            if index not in admitted.lost and name in view.ordinal_of
        )
        if len(admitted.lost) < gang.nodes and _astray(gang=gang, view=view, ordinals=beside):
            return Refusal(
                reason=BlockReason.NODES_UNAVAILABLE,
                message=f"has to stay in one {gang.required_level}, but no node of its other pods"
                " carries that label any more",
            ).of(gang)
        outcome = self._search(gang=gang, view=view, pods=len(admitted.lost), beside=beside)
        if isinstance(outcome, Refusal):
            return outcome.of(gang)
        self._take(gang=gang, view=view, places=outcome)
        assignment = list(admitted.assignment)
        replaced = tuple(sorted(admitted.lost))
        for index, name in zip(replaced, _names(view=view, places=outcome), strict=True):
            assignment[index] = name
        return _placed(gang=gang, view=view, assignment=assignment, replaced=replaced)

    def _admit_to(self, *, gang: Gang, queue: Queue, pool: str) -> Placed | Refusal:
        view = self._views[pool]
        refusal = self._quota.never(gang=gang, queue=queue, pool=pool) or self._behind(
            gang=gang, pool=pool
        )
        if refusal:
            return refusal
        refusal = self._quota.exhausted(gang=gang, queue=queue, pool=pool)
        if refusal:
            # A gang that never fits must not be told (nor hold its queue) to wait for quota.
            return self._hopeless(gang=gang, view=view) or refusal
        outcome = self._search(gang=gang, view=view, pods=gang.nodes)
        if isinstance(outcome, Refusal):
            return outcome
        self._take(gang=gang, view=view, places=outcome)
        self._quota.charge(gang=gang, pool=pool)
        return _placed(gang=gang, view=view, assignment=_names(view=view, places=outcome))

    def _search(
        self, *, gang: Gang, view: PoolView, pods: int, beside: tuple[int, ...] = ()
    ) -> Places | Refusal:
        search = self._searching(gang=gang, view=view, pods=pods, beside=beside)
        if isinstance(search, Refusal):
            return search
        question = (view.tree.pool.name, search.shape, search.demand)
        if question in self._refused:
            return self._refused[question]
        places = find_places(index=search.index, demand=search.demand)
        if places is not None:
            return places
        refusal = why_blocked(search)
        if not beside:
            # A repair's refusal leaves its own pods out of the count: it is nobody else's.
            self._refused[question] = refusal
        return refusal

    def _hopeless(self, *, gang: Gang, view: PoolView) -> Refusal | None:
        search = self._searching(gang=gang, view=view, pods=gang.nodes, beside=())
        if isinstance(search, Refusal):
            return search
        question = (view.tree.pool.name, search.shape, search.demand)
        if question not in self._never:
            self._never[question] = never_fits(search)
        return self._never[question]

    def _searching(
        self, *, gang: Gang, view: PoolView, pods: int, beside: tuple[int, ...]
    ) -> Search | Refusal:
        levels = [level for level in (gang.required_level, gang.preferred_level) if level]
        for level in levels:
            if view.tree.depth_of(level) is None:
                return _level_unknown(view=view, level=level)
        required = view.tree.depth_of(gang.required_level or "") or 0
        preferred = view.tree.depth_of(gang.preferred_level or "") or 0
        demand = Demand(
            pods=pods,
            required_depth=required,
            start_depth=max(required, preferred),
            beside=beside,
        )
        shape = Shape(request=view.axis.vector(gang.per_pod), admission=admission_of(gang))
        key = (view.tree.pool.name, shape)
        if key not in self._indexes:
            self._indexes[key] = SlotIndex(view=view, shape=shape)
        return Search(view=view, index=self._indexes[key], shape=shape, gang=gang, demand=demand)

    def _take(self, *, gang: Gang, view: PoolView, places: Places) -> None:
        view.occupy(view.holder(gang=gang, nodes=_names(view=view, places=places)))

    def _behind(self, *, gang: Gang, pool: str) -> Refusal | None:
        first = self._held_back.get((None, pool)) or self._held_back.get((gang.queue, pool))
        if first is None:
            return None
        return Refusal(
            reason=BlockReason.BEHIND_HIGHER_PRIORITY,
            message=f"waits behind {first.key}, which comes earlier and waits in pool {pool}"
            f" ({first.reason})",
            blockers=(first.key,),
            needed=gang.gpus,
        )

    def _hold_back(self, *, gang: Gang, refusals: dict[str, Refusal], blocked: Blocked) -> None:
        """Under the strict rule, let nobody pass a gang that others' leaving will help."""
        if self._policy.waiting is not WaitingRule.STRICT:
            return
        for pool, refusal in refusals.items():
            if refusal.reason in _WAITS_FOR_CAPACITY:
                self._held_back.setdefault((None, pool), blocked)
            elif refusal.reason is BlockReason.QUOTA_EXHAUSTED:
                self._held_back.setdefault((gang.queue, pool), blocked)


def _astray(*, gang: Gang, view: PoolView, ordinals: Sequence[int]) -> bool:
    """Whether nobody can say in which domain of the required level these nodes are."""
    depth = view.tree.depth_of(gang.required_level or "")
    if depth is None:
        return False
    ids = {view.tree.domain_of[depth][ordinal] for ordinal in ordinals}
    return not any(view.tree.domains[depth][identity].known for identity in ids)


def _names(*, view: PoolView, places: Places) -> list[str]:
    """Node names by pod: in the order of the tree, so that neighbours sit together."""
    return [view.tree.nodes[i].name for i in sorted(places) for _ in range(places[i])]


def _placed(
    *, gang: Gang, view: PoolView, assignment: Sequence[str], replaced: tuple[int, ...] = ()
) -> Placed:
    known = [view.ordinal_of[name] for name in assignment if name in view.ordinal_of]
    depth, domain = view.tree.common(known)
    level = view.tree.level_name(depth)
    where = f"in {level} {domain.name}" if level else f"across pool {view.tree.pool.name}"
    return Placed(
        key=gang.key,
        uid=gang.uid,
        pool=view.tree.pool.name,
        assignment=tuple(assignment),
        replaced=replaced,
        level=level,
        domain=domain.path,
        message=f"placed on {counted(len(set(assignment)), 'node')}, {where}",
    )


def _nearest(refusals: dict[str, Refusal]) -> Refusal:
    """One answer out of each pool's: the nearest to a start, the first pool among equals."""
    return min(refusals.values(), key=lambda refusal: _NEAREST_FIRST.index(refusal.reason))


def _backing_off(gang: Gang) -> Refusal:
    cause = gang.retry_cause or "its pods could not be created"
    return Refusal(
        reason=BlockReason.BACKING_OFF,
        message=f"waits before the next try: {cause}",
        needed=gang.gpus,
    )


def _level_unknown(*, view: PoolView, level: str) -> Refusal:
    levels = named(view.tree.pool.levels) or "none"
    return Refusal(
        reason=BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
        message=f"pool {view.tree.pool.name} has no topology level {level}; its levels: {levels}",
    )
