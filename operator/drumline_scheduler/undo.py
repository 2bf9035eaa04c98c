"""The inverse of a change to a view or an account, and what is found by doing and undoing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Undo = Callable[[], None]
"""Restores what a change altered; called at most once, the latest change first."""
Item = TypeVar("Item")


def minimal_subset(
    *,
    candidates: Iterable[Item],
    remove: Callable[[Item], Undo],
    fits: Callable[[], bool],
) -> list[Item]:
    """Which of the candidates have to go before `fits` holds; everything is undone at the end.

    They go in the given order until there is room; then, last first, each comes back whose
    leaving turns out to be needless. So none of the result is superfluous. All of them, if even
    that makes no room. O(candidates) moves.
    """
    gone: list[tuple[Item, Undo]] = []
    for item in candidates:
        gone.append((item, remove(item)))
        if fits():
            break
    kept: list[tuple[Item, Undo]] = []
    for item, undo in reversed(gone):
        undo()
        if not fits():
            kept.append((item, remove(item)))
    for _, undo in kept:
        undo()
    return [item for item, _ in reversed(kept)]
