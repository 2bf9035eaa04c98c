"""A view of the cluster at one moment: the view of each pool, the quota ledger, the slot indexes.

A cycle works on the cluster view of *now*. Where jobs are on their way out for others that wait,
there is a second one, of *soon*: without those who leave, and with those who wait for them seated
in the places that are kept for them (`projection`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Gang, Node
from drumline.scheduling.placement.best_fit import CapacityIndex
from drumline.scheduling.placement.demand_variants import DemandVariant, vacant_positions, variants
from drumline.scheduling.placement.eligibility import NodeFilter
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.placement.search import Search
from drumline.scheduling.placement.slicing import unparted
from drumline.scheduling.placement.slots import PodShape, SlotIndex
from drumline.scheduling.quota.quota_ledger import QuotaLedger
from drumline.scheduling.rejections import Rejection, correction, named
from drumline.scheduling.undo import Undo

_NOBODY: Final[Mapping[int, str]] = MappingProxyType({})


_LONG: Final = 200_000
"""Changes that a log may hold."""
_MANY: Final = 2000
"""Shapes, and ways to ask, that are remembered."""

Kept = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchPlan:
    """How alike gangs are searched for."""

    variants: Sequence[DemandVariant]
    rooms: Sequence[CapacityIndex]


class ClusterView:
    """Who holds what at one moment."""

    def __init__(self, *, pools: dict[str, PoolView], quota: QuotaLedger) -> None:
        self.pools = pools
        self.quota = quota
        self._rooms: dict[Hashable, CapacityIndex] = {}
        self._opens: dict[tuple[str, NodeFilter], list[bool]] = {}
        """By pool: which nodes are open to whom; the indexes keep them up to date."""
        self._idle: dict[Hashable, CapacityIndex] = {}
        """Of nodes that nobody holds anything of."""
        self._plans: dict[tuple[str, int, Hashable, Kept], _SearchPlan | Rejection] = {}
        self.never: dict[Hashable, Rejection | None] = {}
        """By question: why gangs without any places do not fit even if all others were gone."""
        self._latest: Search | None = None
        """The same gang is searched for some times in a row: for places, reasons and remedies."""

    def copy(self) -> ClusterView:
        """A cluster view of the same moment that can be changed separately. O(nodes + admitted)."""
        pools = {pool: view.copy() for pool, view in self.pools.items()}
        return ClusterView(pools=pools, quota=self.quota.copy())

    def search(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NOBODY
    ) -> Search | Rejection:
        """The search for some places of a gang, or why nothing like it can be searched for.

        Args:
            gang: whose pods they are.
            pool: where.
            pods: how many main pods it has when all are found.
            kept: nodes by position of the pods that stay where they are.
        """
        view, latest = self.pools[pool], self._latest
        alike = latest and latest.gang is gang and latest.pods == pods and latest.view is view
        if latest and alike and not kept:
            return latest
        key = (pool, pods, _asks(gang), tuple(sorted(kept.items())))
        if key not in self._plans:
            self._plans[key] = self._plan(gang=gang, view=view, pods=pods, kept=kept)
        plan = self._plans[key]
        if isinstance(plan, Rejection):
            return plan
        search = Search(
            view=view,
            gang=gang,
            question=key,
            variants=plan.variants,
            rooms=plan.rooms,
            idle=self._idle,
            pods=pods,
        )
        if not kept:
            self._latest = search
        return search

    def renew(self, node: Node) -> None:
        """Look at a node again that is another value now, and asks for nothing else anew."""
        view = self.pools[node.pool]
        before = view.tree.nodes[view.ordinal_of[node.name]]
        ordinal = view.renew(node)
        if before.allocatable != node.allocatable or not _open_alike(before, node):
            self.never.clear()
            for room in (*self._rooms.values(), *self._idle.values()):
                if room.index.tree is view.tree:
                    room.renew(ordinal)

    def tidy(self) -> None:
        """Forget what is of no use to another cycle, and everything once it is too much."""
        self._plans = {key: plan for key, plan in self._plans.items() if not key[-1]}
        self._latest = None
        changes = max((len(view.log) for view in self.pools.values()), default=0)
        if changes > _LONG or len(self._rooms) > _MANY or len(self._plans) > _MANY:
            self._rooms.clear()
            self._idle.clear()
            self._plans.clear()
            self._opens.clear()
            self.never.clear()
            for view in self.pools.values():
                view.clear_log()

    def _plan(
        self, *, gang: Gang, view: PoolView, pods: int, kept: Mapping[int, str]
    ) -> _SearchPlan | Rejection:
        tree = view.tree
        asked = (gang.required_level, gang.preferred_level, gang.balanced_level)
        for level in (*asked, *(piece.level for piece in gang.slices)):
            if level and tree.depth_of(level) is None:
                return _level_unknown(view=view, level=level)
        required = tree.depth_of(gang.required_level or "") or 0
        vacant = vacant_positions(gang=gang, pods=pods, kept=kept, view=view)
        near = {tree.domain_of[required][ordinal] for ordinal in vacant.kept.values()}
        if kept and required and not any(tree.known[required][i] for i in near):
            return _astray(level=gang.required_level or "")
        found = variants(
            gang=gang,
            view=view,
            vacant=vacant,
            required=required,
            preferred=tree.depth_of(gang.preferred_level or "") or 0,
        )
        if not found or len(found[-1].cuts) < sum(piece.required for piece in gang.slices):
            return _astray(level=next(piece.level for piece in gang.slices if piece.required))
        rooms = [self._room(gang=gang, view=view, shape=one.shape) for one in found]
        return _SearchPlan(variants=found, rooms=rooms)

    def _room(self, *, gang: Gang, view: PoolView, shape: PodShape) -> CapacityIndex:
        requests = tuple(view.axis.vector(role.per_pod) for role in gang.roles)
        key = (view.tree.pool.name, shape, requests)
        if key not in self._rooms:
            door = (view.tree.pool.name, shape.admission)
            if door not in self._opens:
                self._opens[door] = shape.admission.opens(view.tree.nodes)
            index = SlotIndex(
                tree=view.tree,
                shape=shape,
                free=view.free,
                log=view.log,
                alike=view.alike(view.free),
                admitted=self._opens[door],
            )
            self._rooms[key] = CapacityIndex(index=index, requests=requests)
        return self._rooms[key]

    def fits(
        self, *, gang: Gang, pool: str, nodes: Sequence[str], kept: Mapping[int, str] = _NOBODY
    ) -> bool:
        """Whether exactly these nodes are there, open to the gang and free for it now.

        Args:
            gang: who is to have them.
            pool: where.
            nodes: of all its positions but those that are kept, in their order.
            kept: nodes by position of the pods that stay where they are.
        """
        pods = len(nodes) + len(kept) - gang.extras
        search = self.search(gang=gang, pool=pool, pods=pods, kept=kept)
        if isinstance(search, Rejection):
            return False
        view, index = search.view, search.index
        vacant = [i for i in range(gang.extras + pods) if i not in kept]
        places = {**kept, **dict(zip(vacant, nodes, strict=True))}
        if not all(name in view.ordinal_of for name in places.values()):
            return False
        amounts = view.holder(gang=gang, nodes=nodes, positions=vacant).amounts
        for ordinal, wanted in amounts.items():
            free = view.free[ordinal]
            short = any(need > have for need, have in zip(wanted, free, strict=True) if need)
            if short or not index.admitted[ordinal]:
                return False
        ordinals = [view.ordinal_of[places[position]] for position in range(gang.extras + pods)]
        depth, _ = view.tree.common(ordinals)
        if depth < search.depth or not _known_around(view, ordinals, search.depth):
            return False
        cuts = search.variants[-1].cuts
        return unparted(tree=view.tree, cuts=cuts, ordinals=ordinals[gang.extras :])

    def take(
        self,
        *,
        gang: Gang,
        pool: str,
        nodes: Sequence[str],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Give a gang places, beside those it may have.

        Args:
            gang: who gets them.
            pool: where.
            nodes: by position.
            positions: which positions these are; None: the first ones.
        """
        view = self.pools[pool]
        view.occupy(view.holder(gang=gang, nodes=nodes, positions=positions))

    def dismiss(self, *, gang: Gang, pool: str) -> Undo:
        """Take everything from a gang that holds places and quota."""
        view = self.pools[pool]
        undo_places = view.release(view.holders[gang.uid])
        undo_quota = self.quota.credit(gang=gang, pool=pool)

        def undo() -> None:
            undo_quota()
            undo_places()

        return undo


def _open_alike(one: Node, other: Node) -> bool:
    """Whether two values of a node are open to the same gangs."""
    return (
        one.ready == other.ready
        and one.unschedulable == other.unschedulable
        and one.distrusted == other.distrusted
        and one.closed == other.closed
        and one.taints == other.taints
        and one.labels == other.labels
    )


def _asks(gang: Gang) -> Hashable:
    """What of a gang decides where it fits."""
    return (
        gang.per_pod,
        gang.required_level,
        gang.preferred_level,
        gang.slices,
        gang.balanced_level,
        gang.roles,
        gang.tolerations,
        gang.affinity,
        gang.excluded_nodes,
        tuple(sorted(gang.selector.items())),
    )


def _known_around(view: PoolView, ordinals: Sequence[int], depth: int) -> bool:
    known, ids = view.tree.known[depth], view.tree.domain_of[depth]
    return all(known[ids[ordinal]] for ordinal in ordinals)


def _astray(*, level: str) -> Rejection:
    return Rejection(
        reason=BlockReason.NODES_UNAVAILABLE,
        message=f"has to stay in one {level}, but no node of its other pods carries that label"
        " any more",
    )


def _level_unknown(*, view: PoolView, level: str) -> Rejection:
    levels = named(view.tree.pool.levels) or "none"
    return Rejection(
        reason=BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
        message=f"pool {view.tree.pool.name} has no topology level {level}; its levels: {levels}",
        remedy=correction(wrong=level, right=view.tree.pool.levels),
    )
