"""A view of the cluster at one moment: a view of each pool, the quota ledger, and capacity indexes.

A cycle works on the *current* view. Where gangs are being evicted for others there is a second one,
the *projected* view (`projection`).

A search goes through three caches, because most gangs ask for what another gang has asked for:

1. `_plans`: what a gang asks for (`_request_of`), to the ways to ask for it and their capacities.
2. `shapes`: pod shape and role requests, to the capacity of the pool for them.
3. `_eligible`: node filter, to the nodes that pass it.

Example: ten gangs of 2 pods with 4 GPUs each, three of which tolerate a taint, make two plans, two
capacities and two lists of eligible nodes. If one of the ten also requires a rack, a third plan
is made; its capacity is one of the two.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Gang, Node
from drumline_scheduler.placement.demand_variants import DemandVariant, vacant_positions, variants
from drumline_scheduler.placement.domain_selection import CapacityIndex
from drumline_scheduler.placement.eligibility import NodeFilter
from drumline_scheduler.placement.pool_view import PoolView, State
from drumline_scheduler.placement.search import Search
from drumline_scheduler.placement.slicing import has_whole_slices
from drumline_scheduler.placement.slots import PodShape, SlotIndex
from drumline_scheduler.placement.used_volumes import UsedVolumes
from drumline_scheduler.quota.quota_ledger import QuotaLedger
from drumline_scheduler.rejections import Rejection, correction, named
from drumline_scheduler.undo import Undo

_NONE_KEPT: Final[Mapping[int, str]] = MappingProxyType({})
_MAX_LOG: Final = 200_000
"""Number of changes in a log above which it is dropped with everything that reads it."""
_MAX_ENTRIES: Final = 2000
"""Number of capacities or plans above which all of them are dropped."""
_MAX_CELLS: Final = 8_000_000
"""Numbers in the frontiers of all capacities (some 100 MB) above which all frontiers are dropped.
"""
_COUNTED_AFTER: Final = 4
"""Number of new capacities with roles after which the frontiers are counted."""

Kept = tuple[tuple[int, str], ...]


class _Question:
    """A key that is hashed once. It is looked up several times for each gang in line."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._key == other._key


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchPlan:
    """The demand variants and capacities that gangs with equal requests share."""

    question: _Question
    variants: Sequence[DemandVariant]
    capacities: Sequence[CapacityIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRejection:
    """The rejection of a gang that holds nothing, and the state of the pool that it describes."""

    rejection: Rejection
    state: State | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRejection:
    """A quota rejection that also names gangs whose nodes are needed, and what it depends on."""

    rejection: Rejection
    quota: Rejection
    """The rejection for the quota alone."""
    blockers: tuple[str, ...]
    """Blockers of the rejection for the nodes."""
    read: tuple[object, ...]
    """Allocations and free capacity that were read."""

    def holds_for(
        self, quota: Rejection, *, more: tuple[str, ...], read: tuple[object, ...]
    ) -> bool:
        """Return whether the rejection holds for these two rejections and this capacity."""
        return self.quota is quota and self.blockers == more and self.read == read


class ClusterView:
    """Allocations and free capacity at one moment, and the searches in them."""

    def __init__(self, *, pools: dict[str, PoolView], quota: QuotaLedger) -> None:
        self.pools = pools
        self.quota = quota
        self.shapes: dict[Hashable, CapacityIndex] = {}
        """Another object once all capacities were dropped."""
        self._eligible: dict[tuple[str, NodeFilter], tuple[list[bool], int]] = {}
        """Eligible nodes by pool and filter, and the part of `PoolView.renewed` that they know."""
        self._idle: dict[Hashable, CapacityIndex] = {}
        """Capacities under hypothetical conditions (`what_if`)."""
        self._plans: dict[tuple[str, int, Hashable, Kept], _SearchPlan | Rejection] = {}
        self._plan_of: dict[int, tuple[Gang, PoolView, int, _SearchPlan]] = {}
        """The last plan of a gang by its identity, with pool and pods: gangs of this cycle."""
        self._plan_before = self._plan_of
        """Plans of the last cycle. Older ones are dropped, so gangs that are gone are not kept."""
        self.infeasible: dict[Hashable, Rejection | None] = {}
        """Rejections of gangs that hold nothing and do not fit even into the empty pool, by
        question."""
        self.explained: dict[Hashable, ExplainedRejection] = {}
        """The last rejection of each question of this and of earlier cycles."""
        self.completed: dict[Hashable, CompletedRejection] = {}
        """The last quota rejection of each queue and question, with all its blockers."""
        self.used = UsedVolumes()
        self._uncounted = 0
        """Capacities with roles since frontiers were counted."""
        self._latest: Search | None = None
        """One gang is searched for several times in a row: for nodes, reasons and remedies."""

    def copy(self) -> ClusterView:
        """Return a view of the same moment that can be changed separately.

        O(nodes + admitted gangs).
        """
        pools = {pool: view.copy() for pool, view in self.pools.items()}
        clone = ClusterView(pools=pools, quota=self.quota.copy())
        clone.used = self.used.copy()
        return clone

    def search(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NONE_KEPT
    ) -> Search | Rejection:
        """Return the search for nodes for pods of a gang, or why it cannot be tried.

        Args:
            gang: the gang.
            pool: the name of the pool.
            pods: main pods of the gang once all nodes are found.
            kept: nodes by position, for the pods that keep their node.
        """
        if gang.volumes:
            gang = self.used.sparing(gang, view=self.pools[pool])
        view, latest = self.pools[pool], self._latest
        same = latest and latest.gang is gang and latest.pods == pods and latest.view is view
        if latest and same and not kept:
            return latest
        known = None if kept else self._plan_of.get(id(gang)) or self._plan_before.get(id(gang))
        if known is not None and known[0] is gang and known[1] is view and known[2] == pods:
            self._plan_of[id(gang)] = known
            return self._search(gang=gang, view=view, pods=pods, plan=known[3])
        key = (pool, pods, _request_of(gang), tuple(sorted(kept.items())))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(gang=gang, view=view, pods=pods, kept=kept)
            # The smallest and the wanted size are searched in every cycle. Other sizes are tried
            # once, so their plans would only fill the cache.
            if pods in (gang.legal_sizes[0], gang.nodes):  # other sizes are tried once
                self._plans[key] = plan
        if isinstance(plan, Rejection):
            return plan
        if not kept:
            self._plan_of[id(gang)] = (gang, view, pods, plan)
        return self._search(gang=gang, view=view, pods=pods, plan=plan, is_new=not kept)

    def _search(
        self, *, gang: Gang, view: PoolView, pods: int, plan: _SearchPlan, is_new: bool = True
    ) -> Search:
        search = Search(
            view=view,
            gang=gang,
            question=plan.question,
            variants=plan.variants,
            capacities=[capacity.renewed() for capacity in plan.capacities],
            idle=self._idle,
            pods=pods,
        )
        if is_new:
            self._latest = search
        return search

    def renew(self, node: Node) -> None:
        """Replace a node by its new value. Capacities count it again when they are used.

        Thousands of capacities may be kept, so none of them is touched here.
        """
        view = self.pools[node.pool]
        before = view.tree.nodes[view.ordinal_of[node.name]]
        ordinal = view.renew(node)
        # `used` alone changes often and reaches the indexes by the log. Everything else is rare.
        is_resized = before.allocatable != node.allocatable
        if is_resized or before.hides_gpus != node.hides_gpus:
            self.infeasible.clear()  # nodes out of service count, too
        if is_resized or not _equally_eligible(before, node):
            view.renewed.append(ordinal)

    def tidy(self) -> None:
        """Drop what only one cycle needs, and all caches once one of them is too large."""
        self.used = UsedVolumes()
        self._plans = {key: plan for key, plan in self._plans.items() if not key[-1]}
        self._latest = None
        self._plan_before, self._plan_of = self._plan_of, {}
        views = self.pools.values()
        logs = (log for view in views for log in (view.log, view.renewed, view.allocations.log))
        changes = max(map(len, logs), default=0)
        entries = max(len(self.shapes), len(self._plans), len(self.completed))
        if changes > _MAX_LOG or entries > _MAX_ENTRIES:
            self.shapes = {}
            self._idle.clear()
            self._plans.clear()
            self._plan_before = {}
            self._eligible.clear()
            self.infeasible.clear()
            self.explained.clear()
            self.completed.clear()
            for view in self.pools.values():
                view.clear_log()

    def _plan(
        self, *, gang: Gang, view: PoolView, pods: int, kept: Mapping[int, str]
    ) -> _SearchPlan | Rejection:
        tree = view.tree
        unknown = _unknown_level(gang, view)
        if unknown is not None:
            return unknown
        required = tree.depth_of(gang.required_level or "") or 0
        vacant = vacant_positions(gang=gang, pods=pods, kept=kept, view=view)
        # A repair must stay in the required domain of the remaining pods, so its label must exist.
        domains = {tree.domain_of[required][ordinal] for ordinal in vacant.kept.values()}
        if kept and required and not any(tree.known[required][i] for i in domains):
            return _infeasible(level=gang.required_level or "")
        ways = variants(
            gang=gang,
            view=view,
            vacant=vacant,
            required=required,
            preferred=tree.depth_of(gang.preferred_level or "") or 0,
        )
        # Required slices must survive in the last variant, even after all preferred ones are
        # dropped.
        required_slices = [piece for piece in gang.slices if piece.required]
        if not ways or len(ways[-1].slice_levels) < len(required_slices):
            asked = (required_slices[0].level, gang.required_level or "")
            return _infeasible(level=max(asked, key=lambda level: tree.depth_of(level) or 0))
        capacities = [self._capacity(gang=gang, view=view, shape=way.shape) for way in ways]
        key = (view.tree.pool.name, pods, _request_of(gang), tuple(sorted(kept.items())))
        return _SearchPlan(question=_Question(key), variants=ways, capacities=capacities)

    def _capacity(self, *, gang: Gang, view: PoolView, shape: PodShape) -> CapacityIndex:
        requests = tuple(view.axis.request(role.per_pod) for role in gang.roles)
        key = (view.tree.pool.name, shape, requests)
        if key not in self.shapes:
            index = SlotIndex(
                tree=view.tree,
                shape=shape,
                free=view.free,
                log=view.log,
                distinct=view.distinct(view.free),
                eligible=self._eligible_for(shape.node_filter, view=view),
            )
            if requests:
                self._bound_frontiers()
            self.shapes[key] = CapacityIndex(index=index, requests=requests, renewed=view.renewed)
        return self.shapes[key]

    def _eligible_for(self, node_filter: NodeFilter, *, view: PoolView) -> list[bool]:
        """Return the eligible nodes, by ordinal. Shapes with one filter share them."""
        key = (view.tree.pool.name, node_filter)
        eligible, read = self._eligible.get(key, ([], 0))
        if not eligible:
            eligible = node_filter.eligible(view.tree.nodes, table=view.tree.labels)
        else:
            for ordinal in set(view.renewed[read:]):
                node = view.tree.nodes[ordinal]
                eligible[ordinal] = node_filter.ineligibility(node) is None
        self._eligible[key] = (eligible, len(view.renewed))
        return eligible

    def _bound_frontiers(self) -> None:
        """Drop the frontiers once they use too much memory. They are computed again when needed.

        They are counted once for some new capacities.
        """
        self._uncounted += 1
        if self._uncounted < _COUNTED_AFTER:
            return
        self._uncounted = 0
        with_roles = [
            capacity
            for capacity in (*self.shapes.values(), *self._idle.values())
            if capacity.requests
        ]
        if sum(capacity.cells for capacity in with_roles) > _MAX_CELLS:
            for capacity in with_roles:
                capacity.forget()

    def fits(
        self, *, gang: Gang, pool: str, nodes: Sequence[str], kept: Mapping[int, str] = _NONE_KEPT
    ) -> bool:
        """Return whether a gang can run on exactly these nodes.

        The nodes must be eligible, have enough free, and satisfy the gang's topology.

        Args:
            gang: the gang.
            pool: the name of the pool.
            nodes: nodes of all positions except the kept ones, in order of position.
            kept: nodes by position, for the pods that keep their node.
        """
        pods = len(nodes) + len(kept) - gang.extras
        search = self.search(gang=gang, pool=pool, pods=pods, kept=kept)
        if isinstance(search, Rejection):
            return False
        view = search.view
        # 1. Every node must still exist.
        vacant: list[int] | None = None
        names = nodes
        if kept:
            vacant = [i for i in range(gang.extras + pods) if i not in kept]
            node_of = {**kept, **dict(zip(vacant, nodes, strict=True))}
            names = [node_of[position] for position in range(gang.extras + pods)]
        if not view.ordinal_of.keys() >= set(names):
            return False
        # 2. Each node must be eligible and have enough of every requested resource.
        amounts = view.allocation(gang=gang, nodes=nodes, positions=vacant).amounts
        eligible, free = search.index.eligible, view.free
        if not all(map(eligible.__getitem__, amounts)):
            return False
        # Most of a thousand nodes have the same amounts.
        for wanted, have in {(wanted, free[ordinal]) for ordinal, wanted in amounts.items()}:
            if any(need > amount for need, amount in zip(wanted, have, strict=True) if need):
                return False
        # 3. The nodes must satisfy the required level and the required slices.
        ordinals = list(map(view.ordinal_of.__getitem__, names))
        distinct = list(dict.fromkeys(ordinals))
        depth, _ = view.tree.common(distinct)
        if depth < search.depth or not _are_labelled(view, distinct, search.depth):
            return False
        slice_levels = search.variants[-1].slice_levels
        main = ordinals[gang.extras :]
        return has_whole_slices(tree=view.tree, slice_levels=slice_levels, ordinals=main)

    def take(
        self,
        *,
        gang: Gang,
        pool: str,
        nodes: Sequence[str],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Give a gang capacity on some nodes, in addition to what it may hold already.

        Args:
            gang: the gang.
            pool: the name of the pool.
            nodes: node names, one for each position.
            positions: the positions of these nodes. None: the first positions.
        """
        view = self.pools[pool]
        view.occupy(view.allocation(gang=gang, nodes=nodes, positions=positions))
        if gang.volumes:
            self.used.note(gang=gang, nodes=nodes, view=view)

    def has_places(self, gang: Gang) -> bool:
        """Return whether a gang holds any slot in this view."""
        return any(gang.uid in view.allocations for view in self.pools.values())

    def dismiss(self, *, gang: Gang, pool: str) -> Undo:
        """Take capacity and quota from a gang that holds both, and return the undo."""
        view = self.pools[pool]
        undo_release = view.release(view.allocations[gang.uid])
        undo_quota = self.quota.credit(gang=gang, pool=pool)
        undo_use = self.used.forget(gang) if gang.volumes else None

        def undo() -> None:
            if undo_use is not None:
                undo_use()
            undo_quota()
            undo_release()

        return undo


def _equally_eligible(before: Node, after: Node) -> bool:
    """Return whether two values of a node are eligible for the same gangs."""
    return (
        before.ready == after.ready
        and before.starting == after.starting
        and before.unschedulable == after.unschedulable
        and before.distrusted == after.distrusted
        and before.closed == after.closed
        and before.quarantined == after.quarantined
        and before.taints == after.taints
        and before.tolerated == after.tolerated
        and before.outside == after.outside
        and before.attached == after.attached
        and before.labels == after.labels
    )


def _request_of(gang: Gang) -> Hashable:
    """Return everything about a gang that decides where it fits."""
    return (
        gang.per_pod,
        gang.required_level,
        gang.preferred_level,
        gang.slices,
        gang.balanced_level,
        gang.roles,
        gang.tolerations,
        gang.affinity,
        gang.volumes,
        gang.excluded_nodes,
        gang.may_share,
        gang.is_foreign,
        tuple(sorted(gang.selector.items())),
    )


def _are_labelled(view: PoolView, ordinals: Sequence[int], depth: int) -> bool:
    """Return whether all these nodes carry the label of the level at a depth."""
    known, ids = view.tree.known[depth], view.tree.domain_of[depth]
    return all(known[ids[ordinal]] for ordinal in set(ordinals))


def _infeasible(*, level: str) -> Rejection:
    return Rejection(
        reason=BlockReason.NODES_UNAVAILABLE,
        message=f"must stay in one {level}, but no node of its other pods has that label any more",
    )


def _unknown_level(gang: Gang, view: PoolView) -> Rejection | None:
    """Return the rejection of a gang that names a level that its pool does not have."""
    tree = view.tree
    asked = (gang.required_level, gang.preferred_level, gang.balanced_level)
    for level in (*asked, *(piece.level for piece in gang.slices)):
        if level and tree.depth_of(level) is None:
            levels = named(tree.pool.levels) or "none"
            return Rejection(
                reason=BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
                message=f"pool {tree.pool.name} has no topology level {level};"
                f" its levels: {levels}",
                remedy=correction(wrong=level, right=tree.pool.levels),
            )
    return None
