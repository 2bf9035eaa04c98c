"""Count the slots under hypothetical conditions: an empty pool, GPUs only, no topology.

`explain` and `remedies` use the answers to tell rejections and remedies apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul, sub

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.distinct_capacities import DistinctCapacities
from drumline_scheduler.placement.domain_selection import CapacityIndex
from drumline_scheduler.placement.search import Search
from drumline_scheduler.placement.slots import PodShape, SlotIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The differences from the capacity that is searched. None: no difference."""

    all_nodes: bool = False
    """True: nodes also count that are out of service or ineligible for the gang."""
    shape: PodShape | None = None
    """Shape of the main pods."""
    role_requests: tuple[Vector, ...] | None = None
    eligible: list[bool] | None = None
    """Nodes that the gang may use, by ordinal."""


_AS_SEARCHED = Circumstances()


def capacity_with(
    search: Search,
    amounts: Sequence[Vector],
    differing: Circumstances = _AS_SEARCHED,
    *,
    distinct: DistinctCapacities | None = None,
) -> CapacityIndex:
    """Return the capacity if these amounts were free, by ordinal. O(nodes).

    Args:
        search: the search that failed.
        amounts: hypothetical free resources of each node.
        differing: differences of the hypothetical case from the search.
        distinct: the distinct vectors of the amounts, if they are known already.
    """
    requests, eligible = differing.role_requests, differing.eligible
    index = SlotIndex(
        tree=search.view.tree,
        shape=differing.shape or search.shape,
        free=amounts,
        distinct=distinct or search.view.distinct(amounts),
        all_nodes=differing.all_nodes,
        eligible=search.index.eligible if eligible is None else eligible,
    )
    return CapacityIndex(
        index=index,
        requests=search.capacity.requests if requests is None else requests,
        renewed=search.view.renewed,
    )


def capacity_if_empty(search: Search, *, all_nodes: bool) -> CapacityIndex:
    """Return the capacity if no other gang and no foreign pod held anything.

    The gang's own pods stay, and so do slots beside them that its other pods need.
    """
    view, fixed = search.view, search.variants[-1].fixed
    own = view.allocations.get(search.gang.uid)
    # Without pods of its own, the answer is the same for all gangs of the shape and is kept.
    if own is None and not fixed:
        all_nodes = all_nodes or all(search.index.eligible)
        key = (view.tree.pool.name, search.shape, search.capacity.requests, all_nodes)
        if key not in search.idle:
            search.idle[key] = capacity_with(
                search, view.capacity, Circumstances(all_nodes=all_nodes)
            )
        return search.idle[key].renewed()
    amounts, changed = list(view.capacity), {ordinal for ordinal, _ in fixed}
    for ordinal, amount in own.amounts.items() if own is not None else ():
        amounts[ordinal] = tuple(map(sub, amounts[ordinal], amount))
    for ordinal, positions in fixed:
        taken = map(mul, search.shape.request, (len(positions),) * len(search.shape.request))
        amounts[ordinal] = tuple(map(sub, amounts[ordinal], taken))
    changed.update(own.amounts if own is not None else ())
    distinct = view.distinct(view.capacity).replaced(amounts, ordinals=changed)
    return capacity_with(search, amounts, Circumstances(all_nodes=all_nodes), distinct=distinct)


def roomy_for_gpus_alone(search: Search, ids: Sequence[int]) -> list[int]:
    """Return those of these domains that could hold the pods now if these requested only GPUs."""
    capacity = _capacity_for_gpus_alone(search)
    if not capacity.may_hold(demand=search.demand, depth=search.depth):
        return []
    most = search.most(capacity)
    return [i for i in ids if most[i] >= search.demand.pods]


def _capacity_for_gpus_alone(search: Search) -> CapacityIndex:
    view = search.view
    shape = replace(search.shape, request=_gpus_alone(search.shape.request))
    requests = tuple(map(_gpus_alone, search.capacity.requests))
    key = (view.tree.pool.name, shape, requests)
    if key not in search.idle:
        index = SlotIndex(
            tree=view.tree,
            shape=shape,
            free=view.free,
            log=view.log,
            eligible=search.index.eligible,
        )
        search.idle[key] = CapacityIndex(index=index, requests=requests, renewed=view.renewed)
    return search.idle[key].renewed()


def fits_without_topology(search: Search) -> bool:
    """Return whether topology is required, and the pool could hold the pods now without it."""
    if not (search.depth or search.variants[-1].slice_levels):
        return False
    loose = replace(
        search.demand,
        pods=search.vacant,
        slice_levels=(),
        anchors=(),
        required_depth=0,
        start_depth=0,
    )
    shape = replace(search.shape, grain=1, grain_depths=())
    capacity = search.capacity
    if shape != search.shape:
        capacity = capacity_with(search, search.view.free, Circumstances(shape=shape))
    if not capacity.may_hold(demand=loose, depth=0):
        return False
    return bool(capacity.most(demand=loose, depth=0)[0] >= search.vacant)


def _gpus_alone(request: Vector) -> Vector:
    return (request[0], *(0 for _ in request[1:]))
