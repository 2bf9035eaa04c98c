"""The pods that an elastic gang can do without: parts of it that may leave one after the other.

A running gang that is larger than its smallest size gives up pods size by size, whole slices at a
time: first where most of them help the one that asks, then from the last node on. What a shrinking
gang loses is the restart of the pods that leave: the others carry its work on. So surplus is
cheaper than the same GPUs of a gang that loses its work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from drumline.scheduling.model import Admitted
from drumline.scheduling.placement.pool_view import Allocation, PoolView
from drumline.scheduling.preemption.eviction_simulation import EvictionUnit


def has_surplus(held: Admitted) -> bool:
    """Whether a gang could go on with fewer pods."""
    gang = held.gang
    return bool(
        gang.sizes
        and gang.resizable
        and gang.sizes[0] < held.size
        and not (held.lost or held.giving_up)
    )


def split(
    whole: EvictionUnit, *, view: PoolView, wanted: Callable[[int], bool]
) -> list[EvictionUnit]:
    """The parts of a gang that has surplus, in the order in which they leave; the rest is the last.

    Args:
        whole: the gang as one part.
        view: the pool.
        wanted: whether room on the node of this ordinal helps the one that asks.
    """
    held, gang = whole.held, whole.held.gang
    leavers = _in_leaving_order(held=held, view=view, wanted=wanted)
    parts: list[EvictionUnit] = []
    left, size, before, cost = list(range(len(held.assignment))), held.size, 0, 0.0
    for smaller in reversed([s for s in gang.sizes if s < held.size]):
        out, leavers = leavers[: size - smaller], leavers[size - smaller :]
        leaves = frozenset(out)
        left = [position for position in left if position not in leaves]
        gpus = len(out) * gang.per_pod.gpus
        part = EvictionUnit(
            held=held,
            uid=whole.uid,
            holder=_holder(held=held, view=view, positions=out),
            leaf=whole.leaf,
            gpus=gpus,
            cost=(gpus or len(out)) * whole.seconds,
            seconds=whole.seconds,
            why=whole.why,
            kept=tuple(left),
            step=len(parts),
            before=before,
        )
        parts.append(part)
        size, before, cost = smaller, before + gpus, cost + part.cost
    rest = replace(
        whole,
        holder=_holder(held=held, view=view, positions=left),
        gpus=whole.gpus - before,
        cost=max(0.0, whole.cost - cost),
        step=len(parts),
        before=before,
    )
    return [*parts, rest]


def _in_leaving_order(
    *, held: Admitted, view: PoolView, wanted: Callable[[int], bool]
) -> list[int]:
    """Positions of the main pods, those first that leave first, whole slices together."""
    gang = held.gang
    unit = gang.slices[0].pods if gang.slices else 1
    ordinals = [view.ordinal_of.get(name, -1) for name in held.assignment]
    units = [range(first, first + unit) for first in range(gang.extras, len(held.assignment), unit)]

    def key(unit: Sequence[int]) -> tuple[int, int, int]:
        helping = sum(ordinals[i] >= 0 and wanted(ordinals[i]) for i in unit)
        return (-helping, -ordinals[unit[0]], -unit[0])

    return [position for unit in sorted(units, key=key) for position in unit]


def _holder(*, held: Admitted, view: PoolView, positions: Sequence[int]) -> Allocation:
    nodes = [held.assignment[position] for position in positions]
    return view.holder(gang=held.gang, nodes=nodes, positions=positions)
