"""What gangs were told in this cycle, so that those alike need not come forward.

Capacity and quota only shrink while gangs come forward, so a rejection stays true for every gang of
the same kind (`equivalence_classes`). A gang that would delay a reservation says so for all that
run at least as long. Where somebody was sent away, or gave back what was kept for it, there may be
more room than
before: then everybody is asked again who has not had its turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Gang
from drumline.scheduling.queueing.pending_gangs import PendingGangs
from drumline.scheduling.rejections import Rejection


class RejectionCache:
    """Rejections by kind of gang, and by the kinds of a group's gangs."""

    def __init__(self, waiting: PendingGangs) -> None:
        self._waiting = waiting
        self._rejections: dict[int, Rejection] = {}
        self._delayed: dict[int, list[tuple[float, Rejection]]] = {}
        """By kind, as they were told: for how long gangs, and what."""
        self._groups: dict[Hashable, Mapping[int, Rejection]] = {}
        self._before: list[
            tuple[dict[int, Rejection], dict[int, list[tuple[float, Rejection]]]]
        ] = []
        """What was true until there was more room."""

    def rejection(self, gang: Gang) -> Rejection | None:
        """What gangs like this one were told, if that still holds."""
        return _find(self._rejections, self._delayed, self._waiting.kind(gang), gang)

    def of_kind(self, gang: Gang) -> Rejection | None:
        """What all of the gang's kind were told."""
        return self._rejections.get(self._waiting.kind(gang))

    def last(self, gang: Gang) -> Rejection | None:
        """What gangs like this one were told, whether it still holds or not."""
        kind = self._waiting.kind(gang)
        if kind in self._rejections:
            return self._rejections[kind]
        for rejections, delayed in ((self._rejections, self._delayed), *reversed(self._before)):
            found = _find(rejections, delayed, kind, gang)
            if found is not None:
                return found
        return None

    @property
    def kinds(self) -> dict[int, Rejection]:
        """By kind: what all were told of it who did not come forward."""
        found = dict(self._rejections)
        for rejections, _ in reversed(self._before):
            for kind, rejection in rejections.items():
                found.setdefault(kind, rejection)
        return {kind: one for kind, one in found.items() if kind not in self._delayed}

    def tell(self, *, gang: Gang, rejection: Rejection) -> None:
        """Remember it for those alike."""
        kind = self._waiting.kind(gang)
        if rejection.reason is BlockReason.WOULD_DELAY_RESERVATION:
            self._delayed.setdefault(kind, []).append((_length(gang), rejection))
        else:
            self._rejections[kind] = rejection

    def group(self, members: Sequence[Gang]) -> Mapping[int, Rejection] | None:
        """By position, what gangs of such a group were told that could not start together."""
        return self._groups.get(self.key(members))

    def tell_group(self, *, members: Sequence[Gang], rejected: Mapping[int, Rejection]) -> None:
        """Remember it for groups alike."""
        self._groups[self.key(members)] = rejected

    def forget(self) -> None:
        """There may be more room than before."""
        if self._rejections or self._delayed:
            self._before.append((self._rejections, self._delayed))
        self._rejections, self._delayed, self._groups = {}, {}, {}

    def key(self, members: Sequence[Gang]) -> Hashable:
        """Equal for gangs, or groups of them, that are alike and as long."""
        return tuple((self._waiting.kind(gang), gang.max_runtime_seconds) for gang in members)


def _find(
    rejections: Mapping[int, Rejection],
    delayed: Mapping[int, Sequence[tuple[float, Rejection]]],
    kind: int,
    gang: Gang,
) -> Rejection | None:
    found = rejections.get(kind)
    if found is not None or kind not in delayed:
        return found
    length = _length(gang)
    return next((rejection for least, rejection in delayed[kind] if length >= least), None)


def _length(gang: Gang) -> float:
    return inf if gang.max_runtime_seconds is None else gang.max_runtime_seconds
