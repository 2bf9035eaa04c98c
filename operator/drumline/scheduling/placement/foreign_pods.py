"""Pods on a pool's nodes that belong to no admitted gang, terminating ones included."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub

from drumline.scheduling.placement.allocations import Vector
from drumline.scheduling.placement.pool_view import PoolView
from drumline.scheduling.undo import Undo


def foreign_usage(view: PoolView, ordinal: int) -> Vector:
    """What foreign pods hold on a node."""
    return tuple(max(0, amount) for amount in view.used[ordinal])


def nodes_with_foreign_pods(view: PoolView) -> list[int]:
    """Ordinals of the nodes on which foreign pods hold anything."""
    return [ordinal for ordinal, used in enumerate(view.used) if max(used) > 0]


def without_foreign_pods(view: PoolView, ordinals: Sequence[int]) -> Undo:
    """Free what foreign pods hold on these nodes."""
    before = [(ordinal, view.free[ordinal]) for ordinal in ordinals]
    for ordinal, free in before:
        view.free[ordinal] = tuple(map(add, free, foreign_usage(view, ordinal)))
    view.log.extend(ordinals)

    def undo() -> None:
        for ordinal, _ in before:
            foreign = foreign_usage(view, ordinal)
            view.free[ordinal] = tuple(map(sub, view.free[ordinal], foreign))
        view.log.extend(ordinals)

    return undo
