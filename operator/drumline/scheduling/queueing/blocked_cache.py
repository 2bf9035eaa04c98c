"""What those who wait are told, as values that stay the same object while nothing changes.

Of ten thousand gangs that wait for the same reasons as in the cycle before, nothing is written
anew: per kind one comparison, and only new gangs and kinds with another reason cost more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drumline.scheduling.decisions import Blocked
from drumline.scheduling.queueing.pending_gangs import PendingGangs, is_alone
from drumline.scheduling.rejections import Rejection

_MANY: Final = 1000
"""So many new answers are sooner written for the whole line than looked up one by one."""


class BlockedCache:
    """The answers to gangs that were told what all of their kind are told."""

    def __init__(self) -> None:
        self._rejections: dict[int, Rejection] = {}
        """By kind."""
        self._answers: dict[int, Blocked] = {}
        """By identity of the gang, where its kind was rejected as a whole."""

    def update(self, *, waiting: PendingGangs, told: Mapping[int, Rejection]) -> None:
        """Write to all gangs of the kinds that were rejected as a whole, in `waiting.told`."""
        for gang in waiting.gone:
            self._answers.pop(id(gang), None)
        touched = list(waiting.fresh)
        for kind in self._rejections.keys() - told.keys():
            del self._rejections[kind]
            touched += waiting.of_kind(kind)
            for gang in waiting.of_kind(kind):
                self._answers.pop(id(gang), None)
        changed = {kind for kind, one in told.items() if self._rejections.get(kind) != one}
        for kind in changed:
            rejection = self._rejections[kind] = told[kind]
            gangs = waiting.of_kind(kind)
            touched += gangs
            self._answers.update(zip(map(id, gangs), rejection.of_all(gangs), strict=True))
        for gang in waiting.fresh:
            kind = waiting.kind(gang)
            if kind in told and kind not in changed and not is_alone(gang):
                self._answers[id(gang)] = self._rejections[kind].of(gang)
        if len(touched) > _MANY:
            waiting.told[:] = map(self._answers.get, map(id, waiting.gangs))
            return
        for gang in touched:
            waiting.told[waiting.place(gang)] = self._answers.get(id(gang))
