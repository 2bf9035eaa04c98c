"""A picture of the cluster at one moment: the view of each pool, the quota book, the slot indexes.

A cycle works on the picture of *now*. Where jobs are on their way out for others that wait, there
is a second one, of *soon*: without those who leave, and with those who wait for them seated in the
places that are kept for them (`horizon`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.eligibility import admission_of
from drumline.scheduling.model import Gang, Snapshot
from drumline.scheduling.placement import Demand
from drumline.scheduling.quota import QuotaBook
from drumline.scheduling.refusals import Refusal, named
from drumline.scheduling.search import Search
from drumline.scheduling.slots import Shape, SlotIndex
from drumline.scheduling.view import PoolView, Undo

_NOBODY: Final[Mapping[int, str]] = MappingProxyType({})


class Picture:
    """Who holds what at one moment."""

    def __init__(self, *, views: dict[str, PoolView], quota: QuotaBook) -> None:
        self.views = views
        self.quota = quota
        self._indexes: dict[tuple[str, Shape], SlotIndex] = {}

    def copy(self) -> Picture:
        """A picture of the same moment that can be changed separately. O(nodes + admitted)."""
        views = {pool: view.copy() for pool, view in self.views.items()}
        return Picture(views=views, quota=self.quota.copy())

    def search(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NOBODY
    ) -> Search | Refusal:
        """The search for some places of a gang, or why nothing like it can be searched for.

        Args:
            gang: whose pods they are.
            pool: where.
            pods: how many main pods it has when all are found.
            kept: nodes by position of the pods that stay where they are.
        """
        view = self.views[pool]
        levels = [level for level in (gang.required_level, gang.preferred_level) if level]
        for level in levels:
            if view.tree.depth_of(level) is None:
                return _level_unknown(view=view, level=level)
        required = view.tree.depth_of(gang.required_level or "") or 0
        preferred = view.tree.depth_of(gang.preferred_level or "") or 0
        ordinals = (view.ordinal_of.get(name) for name in kept.values())
        demand = Demand(
            pods=gang.extras + pods - len(kept),
            required_depth=required,
            start_depth=max(required, preferred),
            beside=tuple(sorted(i for i in ordinals if i is not None)),
        )
        shape = Shape(request=view.axis.vector(gang.per_pod), admission=admission_of(gang))
        key = (pool, shape)
        if key not in self._indexes:
            self._indexes[key] = SlotIndex(view=view, shape=shape)
        return Search(view=view, index=self._indexes[key], shape=shape, gang=gang, demand=demand)

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
        if isinstance(search, Refusal):
            return False
        view, index = search.view, search.index
        if not all(name in view.ordinal_of for name in nodes):
            return False
        index.catch_up()
        places = view.holder(gang=gang, nodes=nodes).places
        if any(pods > index.cells[ordinal][1] for ordinal, pods in places.items()):
            return False
        around = [view.ordinal_of[name] for name in kept.values() if name in view.ordinal_of]
        depth, domain = view.tree.common([*places, *around])
        return depth >= search.depth and domain.known_at(search.depth)

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
        view = self.views[pool]
        view.occupy(view.holder(gang=gang, nodes=nodes, positions=positions))

    def dismiss(self, *, gang: Gang, pool: str) -> Undo:
        """Take everything from a gang that holds places and quota."""
        view = self.views[pool]
        undo_places = view.release(view.holders[gang.uid])
        undo_quota = self.quota.credit(gang=gang, pool=pool)

        def undo() -> None:
            undo_quota()
            undo_places()

        return undo


def picture_of(*, snapshot: Snapshot, views: dict[str, PoolView], quota: QuotaBook) -> Picture:
    """The picture of now."""
    for held in snapshot.admitted:
        quota.hold(gang=held.gang, pool=held.pool, size=held.size)
    return Picture(views=views, quota=quota)


def _level_unknown(*, view: PoolView, level: str) -> Refusal:
    levels = named(view.tree.pool.levels) or "none"
    return Refusal(
        reason=BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
        message=f"pool {view.tree.pool.name} has no topology level {level}; its levels: {levels}",
    )
