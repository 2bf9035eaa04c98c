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
    all candidates if even that makes no room. Everything is undone at the end.

    More removals never make less room, so runs of candidates are removed and put back, and a run
    doubles for as long as that changes nothing. O(candidates) moves, but some
    (necessary + 1) x log(candidates) questions.

    Args:
        candidates: the candidates, the preferred ones first.
        remove: removes a candidate and returns the undo.
        fits: whether there is room.
    """
    waiting, gone = list(candidates), list[tuple[Item, Undo]]()
    # 1. Remove runs of candidates until there is room.
    run = 1
    while waiting:
        gone += [(item, remove(item)) for item in waiting[:run]]
        del waiting[:run]
        if fits():
            break
        run *= 2
    else:
        for _, undo in reversed(gone):
            undo()
        return [item for item, _ in gone]
    # 2. Put runs back, last first. Of a run that is needed, half is tried, at last a single one.
    run = 1
    kept: list[tuple[Item, Undo]] = []
    while gone:
        run = min(run, len(gone))
        back = gone[-run:]
        for _, undo in reversed(back):
            undo()
        del gone[-run:]
        if fits():
            run *= 2
            continue
        again = [(item, remove(item)) for item, _ in back]
        if run == 1:
            kept += again
        else:
            gone += again
            run //= 2
    for _, undo in kept:
        undo()
    return [item for item, _ in reversed(kept)]
