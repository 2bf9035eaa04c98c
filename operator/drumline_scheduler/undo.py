"""The inverse of a change to a view or a ledger, and a search that changes and undoes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

Undo = Callable[[], None]
"""Restores the state before a change. Called at most once, the latest change first."""
Item = TypeVar("Item")


class CutShortError(RuntimeError):
    """The time was over before a search ended."""


def minimal_subset(
    *,
    candidates: Iterable[Item],
    remove: Callable[[Item], Undo],
    fits: Callable[[], bool],
    in_runs: bool = False,
) -> list[Item]:
    """Return the candidates that must be removed before `fits` holds.

    Candidates are removed in the given order until there is room. Then, last first, each comes back
    if its removal was not necessary. So every candidate of the result is necessary. The result is
    all candidates if even that makes no room. Everything is undone at the end. O(candidates) moves.

    Args:
        candidates: the candidates, the preferred ones first. Each is read after the one before it
            is removed.
        remove: removes a candidate and returns the undo. Undos are called in any order.
        fits: whether there is room. More removals never make less of it.
        in_runs: whether `fits` is costly. Then runs of candidates are removed and put back, each
            twice as long as the one before: some (necessary + 1) x log(candidates) questions.

    Raises:
        CutShortError: `fits` raised it.
    """
    gone: list[tuple[Item, Undo]] = []
    kept: list[tuple[Item, Undo]] = []

    def room() -> bool:
        try:
            return fits()
        except CutShortError:
            for _, undo in (*reversed(gone), *kept):
                undo()
            raise

    # 1. Remove candidates until there is room.
    remaining, run = iter(candidates), 1
    while more := [(item, remove(item)) for item in islice(remaining, run)]:
        gone += more
        if room():
            break
        run += run * in_runs
    else:
        for _, undo in reversed(gone):
            undo()
        return [item for item, _ in gone]
    # 2. Put them back, last first. Of a run that is needed, half is tried, at last a single one.
    run = 1
    while gone:
        back = gone[-run:]
        for _, undo in reversed(back):
            undo()
        del gone[-run:]
        if room():
            run += run * in_runs
            continue
        again = [(item, remove(item)) for item, _ in back]
        if len(back) == 1:
            kept += again
        else:
            gone += again
        run = max(1, len(back) // 2)
    for _, undo in kept:
        undo()
    return [item for item, _ in reversed(kept)]
