"""Places for one gang at a time in the current view, or the reason why there are none.

Capacity only shrinks while gangs come forward, so a rejection given to a shape stays true and is
given again without a second look; where places that were kept for somebody come free, all such
memories are dropped.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from drumline.scheduling.decisions import Placed
from drumline.scheduling.model import Gang
from drumline.scheduling.placement.explain import never_fits, why_blocked
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.placement.projection import Projection
from drumline.scheduling.placement.search import Search
from drumline.scheduling.rejections import Rejection, counted

_NONE_KEPT: Final[Mapping[int, str]] = MappingProxyType({})


class Placer:
    """Looks for places; whoever gets some takes them from the horizon."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._rejected: dict[Hashable, Rejection] = {}

    def find(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NONE_KEPT
    ) -> list[str] | Rejection:
        """Nodes for the positions of a gang that have none, in their order, or why there are none.

        Args:
            gang: whose pods they are.
            pool: where.
            pods: how many main pods it has when all are found.
            kept: nodes by position of the pods that stay where they are.
        """
        search = self._projection.current.search(gang=gang, pool=pool, pods=pods, kept=kept)
        if isinstance(search, Rejection):
            return search
        question = search.question
        if question in self._rejected:
            return self._rejected[question]
        nodes = search.find()
        if nodes is not None:
            return nodes
        rejection = why_blocked(search)
        if not kept:
            # A repair's rejection leaves its own pods out of the count: it is nobody else's.
            self._rejected[question] = rejection
        return rejection

    def has_room(self, search: Search) -> bool:
        """Whether there are places now for what is searched in the current view."""
        return search.question not in self._rejected and search.has_room()

    def glimpse(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NONE_KEPT
    ) -> list[str] | None:
        """The same without the reason, which costs more than the look."""
        search = self._projection.current.search(gang=gang, pool=pool, pods=pods, kept=kept)
        if isinstance(search, Rejection) or search.question in self._rejected:
            return None
        return search.find()

    def hopeless(self, *, gang: Gang, pool: str, pods: int) -> Rejection | None:
        """The rejection of a gang that does not even fit into the empty pool."""
        search = self._projection.current.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Rejection):
            return search
        question = search.question
        if gang.uid in search.view.allocations:  # its own pods never make room
            return never_fits(search, helped=False)
        known = self._projection.current.never
        if question not in known:
            known[question] = never_fits(search, helped=False)
        return known[question]

    def forget(self) -> None:
        """Look again: there may be more room than before."""
        self._rejected.clear()

    def mark(self) -> Mapping[Hashable, Rejection]:
        """What was rejected so far; see `reset`."""
        return dict(self._rejected)

    def reset(self, mark: Mapping[Hashable, Rejection]) -> None:
        """Forget what was rejected since then: who took the places gives them back."""
        self._rejected = dict(mark)


def placed(
    *, gang: Gang, view: PoolView, assignment: Sequence[str], replaced: tuple[int, ...] = ()
) -> Placed:
    """The answer to a gang that has all its places."""
    level, domain, where = whereabouts(view=view, nodes=assignment)
    pods = len(assignment) - gang.extras
    fewer = pods < gang.nodes and not replaced
    size = f" with {pods} of {counted(gang.nodes, 'pod')}" if fewer else ""
    return Placed(
        key=gang.key,
        uid=gang.uid,
        pool=view.tree.pool.name,
        assignment=tuple(assignment),
        replaced=replaced,
        level=level,
        domain=domain,
        message=f"placed on {counted(len(set(assignment)), 'node')}, {where}{size}",
    )


def whereabouts(*, view: PoolView, nodes: Sequence[str]) -> tuple[str | None, tuple[str, ...], str]:
    """Level and path of the narrowest domain that holds these nodes, and the same in words."""
    known = [view.ordinal_of[name] for name in nodes if name in view.ordinal_of]
    depth, domain = view.tree.common(known) if known else (0, view.tree.domain(0, 0))
    level = view.tree.level_name(depth)
    words = f"in {level} {domain.name}" if level else f"across pool {view.tree.pool.name}"
    return level, domain.path, words
