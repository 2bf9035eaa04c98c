"""The `Blocked` answers of pending gangs, kept from cycle to cycle while they do not change.

Ten thousand gangs may be rejected for the same reasons as in the last cycle. They keep the same
answer objects. The cost is one comparison for each equivalence class, and one new answer for each
gang that was added or whose class has another reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drumline_scheduler.decisions import Blocked
from drumline_scheduler.queueing.pending_gangs import PendingGangs, is_individual
from drumline_scheduler.queueing.predecessors import waiting_for_predecessors
from drumline_scheduler.rejections import Rejection

_MANY: Final = 1000
"""Number of changes above which the whole list is written at once."""


class BlockedCache:
    """The answers of gangs whose class was rejected, and of gangs that wait for predecessors."""

    def __init__(self) -> None:
        self._rejections: dict[int, Rejection] = {}
        """Rejections by class."""
        self._answers: dict[int, Blocked] = {}
        """Answers by identity of the gang."""

    def update(self, *, pending: PendingGangs, rejections: Mapping[int, Rejection]) -> None:
        """Update `pending.blocked`.

        Args:
            pending: the pending gangs of this cycle.
            rejections: rejections by class, for the classes that were rejected as a whole.
        """
        # 1. Forget gangs that are not pending and classes that were not rejected as a whole.
        for gang in pending.removed:
            self._answers.pop(id(gang), None)
        touched = list(pending.added)
        for number in self._rejections.keys() - rejections.keys():
            del self._rejections[number]
            touched += pending.members(number)
            for gang in pending.members(number):
                self._answers.pop(id(gang), None)
        # 2. New answers for classes with another rejection, and for added gangs of the others.
        changed = {
            number
            for number, rejection in rejections.items()
            if self._rejections.get(number) != rejection
        }
        for number in changed:
            rejection = self._rejections[number] = rejections[number]
            gangs = pending.members(number)
            touched += gangs
            self._answers.update(zip(map(id, gangs), rejection.of_all(gangs), strict=True))
        for gang in pending.added:
            number = pending.class_of(gang)
            if gang.after:
                self._answers[id(gang)] = waiting_for_predecessors(gang.after).of(gang)
            elif number in rejections and number not in changed and not is_individual(gang):
                self._answers[id(gang)] = self._rejections[number].of(gang)
        # 3. Write them in the order of the gangs.
        # One pass over all gangs in C is faster than many index searches.
        if len(touched) > _MANY:
            pending.blocked[:] = map(self._answers.get, map(id, pending.gangs))
            return
        for gang in touched:
            pending.blocked[pending.index(gang)] = self._answers.get(id(gang))
