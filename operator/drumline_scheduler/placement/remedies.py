"""Find the smallest change that lets a gang start although no domain can hold it.

The first of these that is true:

1. `ReturnNodes`: enough nodes that are out of service come back, if that is the reason.
2. `RelaxTopology`: the nearest wider level has room for it now.
3. `AskForLess`: the most pods for which there is room now. Not for a gang that runs already.
4. `AskForSmallerPods`: no node is large enough for a pod, in one resource only.
5. `AddNodes`: the fewest more nodes, like the largest eligible one, all in one domain.

Each is checked in the current view first: with it, all else unchanged, the gang starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from drumline_scheduler.decisions import Remedy, RemedyKind
from drumline_scheduler.model import Node
from drumline_scheduler.placement.domain_selection import candidates
from drumline_scheduler.placement.search import Search, is_exact
from drumline_scheduler.placement.slicing import SliceRooms
from drumline_scheduler.placement.what_if import Circumstances, capacity_with

_FEW: Final = 4
"""Maximum number of domains that are tried if a try is expensive."""


def remedy_for(search: Search, *, away: bool) -> Remedy | None:
    """Return the remedy for a gang that does not fit even if other gangs end.

    Args:
        search: the search that failed.
        away: whether the gang would fit with all nodes in service.
    """
    remedy = next(filter(None, _remedies_in_order(search, away=away)), None)
    return None if remedy is None else replace(remedy, pool=search.view.tree.pool.name)


def _remedies_in_order(search: Search, *, away: bool) -> Iterator[Remedy | None]:
    if away:
        yield _return_nodes(search)
    yield _relax_topology(search)
    if not search.demand.beside:
        yield _ask_for_less(search)
    yield _ask_for_smaller_pods(search)
    yield _add_nodes(search)


def _return_nodes(search: Search) -> Remedy | None:
    """Return the remedy with the fewest nodes of one domain that must come back.

    Only nodes that are ineligible for no other reason count. Those with the most slots come first.
    """
    tree, view, shape = search.view.tree, search.view, search.shape
    # Slots by ordinal of nodes that would be eligible if they were in service.
    away = {
        ordinal: shape.slots_in(view.free[ordinal])
        for ordinal, node in enumerate(tree.nodes)
        if not tree.in_service >> ordinal & 1
        and shape.node_filter.out_of_service(node)
        and search.index.ineligibility_of(_in_service(node), ordinal) is None
    }
    best: Remedy | None = None
    for identity in search.ids if away else ():
        inside = [i for i in tree.span(search.depth, identity) if i in away]
        inside.sort(key=lambda i: (-away[i], i))

        def helps(count: int, inside: list[int] = inside, identity: int = identity) -> bool:
            eligible = list(search.index.eligible)
            for ordinal in inside[:count]:
                eligible[ordinal] = True
            capacity = capacity_with(search, view.free, Circumstances(eligible=eligible))
            return search.most(capacity)[identity] >= search.demand.pods

        # More nodes never make it worse, so bisection finds the smallest number.
        if inside and helps(len(inside)):
            count = bisect_left(range(len(inside)), x=True, lo=1, key=helps)
            if best is None or count < best.amount:
                where = search.domain(identity).name
                best = Remedy(kind=RemedyKind.RETURN_NODES, amount=count, where=where)
    return best


def _in_service(node: Node) -> Node:
    return replace(
        node,
        ready=True,
        starting=False,
        unschedulable=False,
        distrusted=False,
        closed="",
        quarantined=False,
    )


def _relax_topology(search: Search) -> Remedy | None:
    tree, capacity = search.view.tree, search.capacity
    for depth in range(search.depth - 1, -1, -1):
        wider = replace(search.demand, required_depth=depth, start_depth=depth)
        most = capacity.most(demand=wider, depth=depth)
        ids = candidates(index=search.index, demand=wider, depth=depth)
        if (most[ids] >= wider.pods).any():
            where = tree.level_name(depth) or ""
            return Remedy(kind=RemedyKind.RELAX_TOPOLOGY, where=where)
    return None


def _ask_for_less(search: Search) -> Remedy | None:
    most, slices = search.most(), search.gang.slices
    room = max((most[i] for i in search.ids), default=0)
    pods = room - room % (slices[0].pods if slices else 1)
    return Remedy(kind=RemedyKind.ASK_FOR_LESS, amount=pods) if pods > 0 else None


def _ask_for_smaller_pods(search: Search) -> Remedy | None:
    """Return the remedy if a single resource makes the pods too large for every node.

    Its amount is the largest that a node has.
    """
    shape, names = search.shape, search.view.axis.names
    distinct = search.view.distinct(search.view.capacity)
    distinct.catch_up()
    whole = distinct.table[np.unique(distinct.places[np.asarray(search.index.counted, dtype=bool)])]
    # Some node holds a pod, or roles are involved: then the size of one pod is not the reason.
    if not len(whole) or shape.slots_in_each(whole).any() or any(search.demand.roles):
        return None
    for place, (asked, most) in enumerate(
        zip(shape.request, whole.max(axis=0).tolist(), strict=True)
    ):
        if not 0 < most < asked:
            continue
        request = (*shape.request[:place], most, *shape.request[place + 1 :])
        smaller = Circumstances(shape=replace(shape, request=request))
        held = search.most(capacity_with(search, search.view.free, smaller))
        if any(held[i] >= search.demand.pods for i in search.ids):
            kind = RemedyKind.ASK_FOR_SMALLER_PODS
            return Remedy(kind=kind, amount=most, where=names[place])
    return None


def _add_nodes(search: Search) -> Remedy | None:
    """Return the remedy with the fewest additional nodes.

    All of them are in one domain of the required level and of each slice.
    """
    tree, demand = search.view.tree, search.demand
    like = _largest(search)
    ids = set(search.ids)
    depths = {search.depth, *(slice_level.depth for slice_level in demand.slice_levels)}
    deepest = max(depths)
    if (
        not is_exact(search)
        or like is None
        or deepest > tree.leaf_depth
        or search.variants[-1].fixed
    ):
        return None
    room = _MoreNodes(search, like=like)
    # One node for each pod is the most that can help, so the search starts above it.
    fewest, where = search.vacant + sum(demand.roles) + 1, ""
    for ordinal in _first_nodes(search, deepest):
        # New nodes must be in a domain that the gang may use, with a label at every level it names.
        around = tree.domain_of[search.depth][ordinal]
        labelled = (tree.known[depth][tree.domain_of[depth][ordinal]] for depth in depths)
        if around not in ids or not all(labelled):
            continue

        def helps(count: int, ordinal: int = ordinal) -> bool:
            return room.with_more(count, ordinal=ordinal) >= demand.pods

        # Search further only if this domain needs fewer nodes than the best one so far.
        if fewest > 1 and helps(fewest - 1):
            fewest = bisect_left(range(fewest), x=True, lo=1, key=helps)
            where = tree.domain(deepest, tree.domain_of[deepest][ordinal]).name
        if not demand.slice_levels:
            break  # the domain with the most room needs the fewest
    if fewest > search.vacant + sum(demand.roles):
        return None
    return Remedy(kind=RemedyKind.ADD_NODES, amount=fewest, where=where)


def _first_nodes(search: Search, deepest: int) -> list[int]:
    """Return the first node of each domain to which nodes might be added, most slots first."""
    tree, slots = search.view.tree, search.index.slots[deepest].tolist()
    ids = sorted(range(len(slots)), key=lambda i: (-slots[i], i))
    most = _FEW if any(search.demand.roles) else len(ids)
    return [tree.span(deepest, i).start for i in ids[:most]]


def _largest(search: Search) -> int | None:
    """Return the eligible node that could hold the most pods, or else has the most GPUs."""
    distinct = search.view.distinct(search.view.capacity)
    distinct.catch_up()
    is_open = np.flatnonzero(search.index.eligible)
    if not len(is_open):
        return None
    places = distinct.places[is_open]
    slots = search.shape.slots_in_each(distinct.table)[places]
    return int(is_open[np.lexsort((is_open, -distinct.table[places, 0], -slots))[0]])


class _MoreNodes:
    """Computes the pods that fit if a leaf domain had more nodes.

    Args:
        search: the search that failed.
        like: ordinal of the node that the additional nodes are equal to when empty.
    """

    def __init__(self, search: Search, *, like: int) -> None:
        self._search = search
        self._free = search.view.capacity[like]
        self._slots = search.shape.slots_in(self._free)
        self._rooms: SliceRooms | None = None

    def with_more(self, count: int, *, ordinal: int) -> int:
        """Return the pods that fit in the domain around a node, at the depth of the search.

        Args:
            count: number of additional nodes.
            ordinal: a node of the leaf domain.
        """
        search, demand = self._search, self._search.demand
        tree, depth = search.view.tree, search.depth
        if any(demand.roles):
            leaf = tree.domain_of[tree.leaf_depth][ordinal]
            return search.capacity.frontiers(demand).with_more(
                depth=depth, leaf=leaf, free=self._free, count=count
            )
        if self._rooms is None:
            self._rooms = SliceRooms(
                tree=tree,
                slots=search.index.slots,
                slice_levels=demand.slice_levels,
                anchors=demand.anchors,
            )
        return self._rooms.with_more(count * self._slots, ordinal=ordinal, depth=depth)
