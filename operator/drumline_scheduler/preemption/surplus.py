"""Surplus: the pods of an elastic gang above its smallest size, as eviction units.

A running gang gives up its surplus size by size, in whole slices. Slices with most pods on nodes
that the preemptor needs come first. Then come slices whose node is empty soonest, so that an
autoscaler can remove it, then slices from the last node on. A shrinking gang loses only the restart
of the evicted pods, because the others keep its work. So surplus is cheaper than the same GPUs of a
gang that loses its work. If there are many sizes, only some are considered (`sizes.sampled`).

Example: a gang of legal sizes 2, 4 and 8 runs with 8 pods. Its first unit has 4 pods, after which
it continues with 4. The second unit has 2 pods, after which it continues with 2. The last unit has
the last 2 pods.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from drumline_scheduler.model import Admitted
from drumline_scheduler.placement.allocations import Allocation
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit
from drumline_scheduler.sizes import sampled


def has_surplus(held: Admitted) -> bool:
    """Return whether a gang could continue with fewer pods."""
    gang = held.gang
    return bool(
        gang.sizes
        and gang.resizable
        and gang.sizes[0] < held.size
        and not (held.lost or held.giving_up)
    )


def split_surplus(
    whole: EvictionUnit, *, view: PoolView, wanted: Callable[[int], bool]
) -> list[EvictionUnit]:
    """Return the units of a gang with surplus, in the order of eviction. The smallest size is last.

    Args:
        whole: the gang as one unit.
        view: view of the pool.
        wanted: returns whether the preemptor needs room on the node of an ordinal.
    """
    held, gang = whole.held, whole.held.gang
    leaving = _in_leaving_order(held=held, view=view, wanted=wanted)
    units: list[EvictionUnit] = []
    left, size, before, cost = list(range(len(held.assignment))), held.size, 0, 0.0
    # One unit for each smaller size. It costs the restart of its pods only.
    for smaller in reversed(sampled(gang.sizes[: bisect_left(gang.sizes, held.size)])):
        out, leaving = leaving[: size - smaller], leaving[size - smaller :]
        evicted = frozenset(out)
        left = [position for position in left if position not in evicted]
        gpus = len(out) * gang.per_pod.gpus
        unit = EvictionUnit(
            held=held,
            uid=whole.uid,
            allocation=_allocation(held=held, view=view, positions=out),
            leaf=whole.leaf,
            gpus=gpus,
            cost=(gpus or len(out)) * whole.seconds,
            seconds=whole.seconds,
            why=whole.why,
            kept=tuple(left),
            step=len(units),
            before=before,
        )
        units.append(unit)
        size, before, cost = smaller, before + gpus, cost + unit.cost
    # The last unit loses the work of the gang. The costs of all units add up to that of the gang.
    rest = replace(
        whole,
        allocation=_allocation(held=held, view=view, positions=left),
        gpus=whole.gpus - before,
        cost=max(0.0, whole.cost - cost),
        step=len(units),
        before=before,
    )
    return [*units, rest]


def _in_leaving_order(
    *, held: Admitted, view: PoolView, wanted: Callable[[int], bool]
) -> list[int]:
    """Return the positions of main pods in the order of eviction, whole slices together."""
    gang = held.gang
    pods_per_slice = gang.slices[0].pods if gang.slices else 1
    ordinals = [view.ordinal_of.get(name, -1) for name in held.assignment]
    slices = [
        range(first, first + pods_per_slice)
        for first in range(gang.extras, len(held.assignment), pods_per_slice)
    ]

    # A node with pods of others stays in use, so evicting this gang there empties no node.
    own = Counter(ordinals)
    shared = {ordinal: _is_shared(held, view=view, ordinal=ordinal) for ordinal in own}

    def key(pods_per_slice: Sequence[int]) -> tuple[int, ...]:
        here = [ordinals[i] for i in pods_per_slice]
        helping = sum(ordinal >= 0 and wanted(ordinal) for ordinal in here)
        stay_used = sum(shared[ordinal] for ordinal in here)
        left = sum(own[ordinal] for ordinal in here) - len(here)
        return (-helping, stay_used, left, -here[0], -pods_per_slice[0])

    return [position for pods_per_slice in sorted(slices, key=key) for position in pods_per_slice]


def _is_shared(held: Admitted, *, view: PoolView, ordinal: int) -> bool:
    """Return whether other pods use GPUs of a node."""
    if ordinal < 0:
        return False
    node = view.tree.nodes[ordinal]
    mine = sum(
        held.gang.request_of(position).gpus
        for position, name in enumerate(held.assignment)
        if name == node.name
    )
    return node.allocatable.gpus - view.free[ordinal][0] > mine


def _allocation(*, held: Admitted, view: PoolView, positions: Sequence[int]) -> Allocation:
    nodes = [held.assignment[position] for position in positions]
    return view.allocation(gang=held.gang, nodes=nodes, positions=positions)
