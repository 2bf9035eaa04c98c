"""The rejections of one cycle by equivalence class, so that equivalent gangs are not tried again.

Capacity and quota only shrink while gangs are admitted, so a rejection stays true for every gang of
its equivalence class (`equivalence_classes`). There is one exception: if a gang would delay a
reservation, this answer holds only for gangs that run at least as long. A preemption or a released
nomination may free capacity. Then the cache is cleared, and gangs whose turn is still to come are
tried again. The cleared rejections remain the answers of gangs that had their turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Gang
from drumline_scheduler.queueing.deferral import NONE_DEFERRED, Deferral
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.rejections import Rejection


@dataclass(slots=True)
class _CachedRejections:
    """The rejections between two clearings of the cache."""

    by_class: dict[int, Rejection] = field(default_factory=dict[int, Rejection])
    delaying: dict[int, list[tuple[float, Rejection]]] = field(
        default_factory=dict[int, list[tuple[float, Rejection]]]
    )
    """Pairs of seconds and rejection, by class. Gangs that run at least this long would delay a
    reservation."""

    def rejection(self, number: int, gang: Gang) -> Rejection | None:
        rejection = self.by_class.get(number)
        if rejection is not None or number not in self.delaying:
            return rejection
        seconds = _runtime(gang)
        delaying = self.delaying[number]
        return next((known for least, known in delaying if seconds >= least), None)


class RejectionCache:
    """Rejections by equivalence class, and by the classes of a group's gangs."""

    def __init__(self, pending: PendingGangs, *, deferral: Deferral = NONE_DEFERRED) -> None:
        self._pending = pending
        self.deferral = deferral
        """Gangs that the cycle does not try."""
        self._deferred = {
            number: Deferral.rejection(pending.classes.examples[number].namespace)
            for number in deferral.classes
        }
        self._known = _CachedRejections()
        self._groups: dict[Hashable, Mapping[int, Rejection]] = {}
        self._cleared: list[_CachedRejections] = []

    def rejection(self, gang: Gang) -> Rejection | None:
        """Return the rejection of an equivalent gang, if it is still true."""
        number = self._pending.class_of(gang)
        return self._deferred.get(number) or self._known.rejection(number, gang)

    def for_class(self, gang: Gang) -> Rejection | None:
        """Return the rejection that holds for the gang's whole class, for all runtimes."""
        number = self._pending.class_of(gang)
        return self._deferred.get(number) or self._known.by_class.get(number)

    def last(self, gang: Gang) -> Rejection | None:
        """Return the last rejection of an equivalent gang, even if it was cleared."""
        number = self._pending.class_of(gang)
        if number in self._deferred:
            return self._deferred[number]
        for known in (self._known, *reversed(self._cleared)):
            rejection = known.rejection(number, gang)
            if rejection is not None:
                return rejection
        return None

    @property
    def by_class(self) -> dict[int, Rejection]:
        """The last rejection of each class that was rejected as a whole."""
        last = {**self._known.by_class, **self._deferred}
        for known in reversed(self._cleared):
            for number, rejection in known.by_class.items():
                last.setdefault(number, rejection)
        # A class in which only some gangs would delay a reservation has no common answer.
        delaying = self._known.delaying
        return {number: rejection for number, rejection in last.items() if number not in delaying}

    def record(self, *, gang: Gang, rejection: Rejection) -> None:
        """Keep a rejection for equivalent gangs."""
        number = self._pending.class_of(gang)
        if rejection.reason is BlockReason.WOULD_DELAY_RESERVATION:
            self._known.delaying.setdefault(number, []).append((_runtime(gang), rejection))
        else:
            self._known.by_class[number] = rejection

    def for_group(self, members: Sequence[Gang]) -> Mapping[int, Rejection] | None:
        """Return the rejections of an equivalent group, by position in it."""
        return self._groups.get(self.key(members))

    def record_group(self, *, members: Sequence[Gang], rejected: Mapping[int, Rejection]) -> None:
        """Keep rejections for equivalent groups."""
        self._groups[self.key(members)] = rejected

    def clear(self) -> None:
        """Let gangs be tried again, because there may be more capacity than before."""
        if self._known.by_class or self._known.delaying:
            self._cleared.append(self._known)
        self._known, self._groups = _CachedRejections(), {}

    def key(self, members: Sequence[Gang]) -> Hashable:
        """Return a key of gangs that is equal for equal classes and maximum runtimes."""
        return tuple((self._pending.class_of(gang), gang.max_runtime_seconds) for gang in members)


def _runtime(gang: Gang) -> float:
    return inf if gang.max_runtime_seconds is None else gang.max_runtime_seconds
