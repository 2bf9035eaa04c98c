"""Find nodes for one gang at a time in the current view, or the reason why there are none.

Free capacity only shrinks while gangs start. So a rejection is valid for equal requests until
withheld capacity becomes free. Then all rejections are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from drumline_scheduler.decisions import Placed
from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Gang
from drumline_scheduler.placement.cluster_view import ExplainedRejection
from drumline_scheduler.placement.explain import never_fits, why_blocked
from drumline_scheduler.placement.pool_view import PoolView, state_of
from drumline_scheduler.placement.projection import Projection
from drumline_scheduler.placement.search import Search
from drumline_scheduler.rejections import Rejection, counted
from drumline_scheduler.work import never_late, spend

_NONE_KEPT: Final[Mapping[int, str]] = MappingProxyType({})


class Placer:
    """Finds nodes. The caller takes them from the projection.

    Args:
        projection: the current and the projected view.
        explain: whether rejections name blockers.
        is_late: whether the time of the cycle is over at a place. Rejections are shorter then.
    """

    def __init__(
        self,
        projection: Projection,
        *,
        explain: bool = True,
        is_late: Callable[[str], bool] = never_late,
    ) -> None:
        self._projection = projection
        self._explain = explain
        self._is_late = is_late
        self._rejected: dict[Hashable, Rejection] = {}
        self._cut_short: set[Hashable] = set()
        """Questions whose rejection lacks something, because the time was over."""

    def find(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NONE_KEPT
    ) -> list[str] | Rejection:
        """Return nodes for the positions of a gang that need one, in their order, or the rejection.

        Args:
            gang: the gang.
            pool: the name of the pool.
            pods: main pods of the gang once all nodes are found.
            kept: nodes by position, for the pods that keep their node.
        """
        return self._find(gang=gang, pool=pool, pods=pods, kept=kept)

    def find_whole(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NONE_KEPT
    ) -> list[str] | Rejection:
        """Return nodes like `find`, or the rejection with all that belongs to it, late or not."""
        before, self._is_late = self._is_late, never_late
        try:
            return self._find(gang=gang, pool=pool, pods=pods, kept=kept)
        finally:
            self._is_late = before

    def _find(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str]
    ) -> list[str] | Rejection:
        spend(1)
        search = self._projection.current.search(gang=gang, pool=pool, pods=pods, kept=kept)
        if isinstance(search, Rejection):
            return search
        question = search.question
        if question in self._rejected:
            return self._rejected[question]
        nodes = search.find()
        if nodes is not None:
            return nodes
        if kept:
            # The rejection of a repair does not count its own pods: it is valid for this gang only.
            return why_blocked(
                search, names=lambda _: self._names(search), helps=lambda: self._helps(search)
            )
        rejection = self._rejected[question] = self._why_blocked(search)
        return rejection

    def _names(self, search: Search) -> bool:
        """Return whether the rejection of a search names blockers."""
        return self._explain and not self._is_late(_place(search))

    def _helps(self, search: Search) -> bool:
        """Return whether the rejection of a search has a remedy."""
        return not self._is_late(f"{_place(search)} remedy")

    def _why_blocked(self, search: Search) -> Rejection:
        """Return the rejection of a new gang, from an earlier cycle if the pool is the same."""
        view, current, explain = search.view, self._projection.current, self._explain
        is_timely = self._names(search) is explain
        key, state = (search.question, explain), state_of(view)
        known = current.explained.get(key)
        # The own pods of a gang never make room, so its rejection is not that of others.
        is_kept = is_timely and search.gang.uid not in view.allocations
        if is_kept and known is not None and known.state == state is not None:
            return known.rejection
        is_whole = is_timely

        def names(tries: int) -> bool:
            # The time is asked for again, because the rest took some as well.
            nonlocal is_whole
            place = f"{_place(search)} blockers{f' {tries}' if tries else ''}"
            is_named = is_timely and explain and not self._is_late(place)
            is_whole &= is_named is explain
            return is_named

        def helps() -> bool:
            nonlocal is_whole
            is_helped = self._helps(search)
            is_whole &= is_helped
            return is_helped

        fits_empty = is_kept and current.infeasible.get(search.question, search) is None
        rejection = why_blocked(search, names=names, helps=helps, fits_empty=fits_empty)
        if not is_whole:
            self._cut_short.add(search.question)
        # A rejection that the time cut short is not kept.
        if not (is_kept and is_whole):
            return rejection
        if known is not None and known.rejection == rejection:
            rejection = known.rejection  # those who compare it do so by identity
        # Gangs that were removed for the explanation are back: the pool is the same as before.
        current.explained[key] = ExplainedRejection(rejection=rejection, state=state_of(view))
        return rejection

    def is_whole(self, search: Search) -> bool:
        """Return whether the rejection of a search was not cut short by the time."""
        return search.question not in self._cut_short

    def rejection(self, search: Search) -> Rejection | None:
        """Return the rejection of a search that has failed in this cycle, if it did."""
        return self._rejected.get(search.question)

    def has_room(self, search: Search) -> bool:
        """Return whether a search in the current view finds nodes now."""
        return search.question not in self._rejected and search.has_room()

    def try_find(
        self, *, gang: Gang, pool: str, pods: int, kept: Mapping[int, str] = _NONE_KEPT
    ) -> list[str] | None:
        """Return nodes like `find`, or None without a reason, which is cheaper.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            pods: number of main pods.
            kept: nodes that stay, by position in the gang.
        """
        spend(1)
        search = self._projection.current.search(gang=gang, pool=pool, pods=pods, kept=kept)
        if isinstance(search, Rejection) or search.question in self._rejected:
            return None
        return search.find()

    def infeasible(self, *, gang: Gang, pool: str, pods: int) -> Rejection | None:
        """Return the rejection of a gang that does not fit even into the empty pool.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            pods: number of main pods.
        """
        search = self._projection.current.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Rejection):
            return search
        question = search.question
        # A gang that runs keeps its pods while it repairs or grows. They are not part of the
        # question, so the answer is not shared.
        if gang.uid in search.view.allocations:  # its own pods never make room
            return never_fits(search)
        known = self._projection.current.infeasible
        if question not in known:
            known[question] = never_fits(search)
        return known[question]

    def forget(self) -> None:
        """Forget all rejections, because there may be more capacity than before."""
        self._rejected.clear()

    def mark(self) -> Mapping[Hashable, Rejection]:
        """Return the rejections so far, for `reset`."""
        return dict(self._rejected)

    def reset(self, mark: Mapping[Hashable, Rejection]) -> None:
        """Forget the rejections since `mark`. The capacity taken since then is free again."""
        self._rejected = dict(mark)


def _place(search: Search) -> str:
    """Return the place at which the time of a cycle is asked for."""
    return f"{Stage.EXPLAIN} {search.gang.uid} {search.view.tree.pool.name}"


def placed(
    *, gang: Gang, view: PoolView, assignment: Sequence[str], replaced: tuple[int, ...] = ()
) -> Placed:
    """Return the decision for a gang that has all its nodes.

    Args:
        gang: the gang to place.
        view: the pool before the start.
        assignment: a node for each pod, in order of position.
        replaced: positions that got a new node.
    """
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
    """Return level and path of the narrowest domain that holds these nodes, and a text about it."""
    known = [view.ordinal_of[name] for name in nodes if name in view.ordinal_of]
    depth, domain = view.tree.common(known) if known else (0, view.tree.domain(0, 0))
    level = view.tree.level_name(depth)
    words = f"in {level} {domain.name}" if level else f"across pool {view.tree.pool.name}"
    return level, domain.path, words
