"""The inverse of a change to a view or a ledger, and a search that changes and undoes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Undo = Callable[[], None]
"""Restores the state before a change. Called at most once, the latest change first."""
Item = TypeVar("Item")


def minimal_subset(
    *,
    candidates: Iterable[Item],
    remove: Callable[[Item], Undo],
    fits: Callable[[], bool],
) -> list[Item]:
    """Return the candidates that must be removed before `fits` holds.

    Candidates are removed in the given order until there is room. Then, last first, each comes back
    if its removal was not necessary. So every candidate of the result is necessary. The result is
    all candidates if even that makes no room. Everything is undone at the end. O(candidates) moves.

    Args:
        candidates: the candidates, the preferred ones first.
        remove: removes a candidate and returns the undo.
        fits: whether there is room.
    """
    gone: list[tuple[Item, Undo]] = []
    for item in candidates:
        gone.append((item, remove(item)))
        if fits():
            break
    else:
        for _, undo in reversed(gone):
            undo()
        return [item for item, _ in gone]
    # Put candidates back, last first. A candidate that is needed is removed again.
    kept: list[tuple[Item, Undo]] = []
    for item, undo in reversed(gone):
        undo()
        if not fits():
            kept.append((item, remove(item)))
    for _, undo in kept:
        undo()
    return [item for item, _ in reversed(kept)]
