"""Those who wait, in order and by kind, brought up to date from one cycle to the next.

Of ten thousand waiting gangs a cycle sees a few new ones and misses a few: the order and the kinds
of all others are those of the cycle before. Gangs are known by identity: an object that was in line
stands where it stood.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Final

from drumline.scheduling.model import Gang
from drumline.scheduling.shares.ordering import Turn, turn
from drumline.scheduling.waiting.kinds import Kinds

_FEW: Final = 500
"""After more changes everybody is sorted anew."""


class Waiting:
    """All waiting gangs in the order of their turns."""

    def __init__(self, kinds: Kinds) -> None:
        self.gangs: list[Gang] = []
        self.ids: list[int] = []
        """Their identities, and"""
        self.uids: list[str] = []
        """their uids, in the same order."""
        self.fresh: list[Gang] = []
        """Those who were not there in the cycle before."""
        self.gone: list[Gang] = []
        """Those who were, and are not any more."""
        self._kinds = kinds
        self._turns: list[Turn] = []
        """Theirs, as well."""
        self._given: tuple[Gang, ...] = ()
        """All of them as they were given."""
        self._kind_of: dict[int, int] = {}
        """By identity of the gang."""
        self._chains: dict[int, list[Gang]] = {}
        """By kind, in the order of their turns."""
        self._alone: dict[int, Gang] = {}
        """By identity: those that are looked at one by one, as they have something of their own: a
        group, kept places, or a try that was rejected."""

    def update(self, pending: Iterable[Gang]) -> None:
        """Let those stand in line who wait now. O(changes x log waiting + waiting)."""
        line = pending if isinstance(pending, tuple) else tuple(pending)
        before, self._given = self._given, line
        if len(line) >= len(before) and all(map(is_, before, line)):
            self.gone, came = [], {id(gang): gang for gang in line[len(before) :]}
        else:
            now = dict(zip(map(id, line), line, strict=True))
            then = dict(zip(map(id, before), before, strict=True))
            self.gone = [then[key] for key in then.keys() - now.keys()]
            came = {key: now[key] for key in now.keys() - then.keys()}
        self.fresh = sorted(came.values(), key=turn)
        for gang in self.gone:
            self._drop(gang)
        for gang in self.fresh:
            self._add(gang)
        if len(self.gone) + len(self.fresh) > _FEW:
            self._stand(sorted(line, key=turn))
            return
        for gang in self.gone:
            self._leave(self.place(gang))
        for gang in self.fresh:
            self._enter(self.place(gang), gang)

    def place(self, gang: Gang) -> int:
        """Where in `gangs` one of them stands, or would stand. O(log waiting)."""
        return bisect_left(self._turns, turn(gang))

    def kind(self, gang: Gang) -> int:
        """The kind of a gang in line."""
        return self._kind_of[id(gang)]

    def of_kind(self, kind: int) -> Sequence[Gang]:
        """All of a kind, but for those that are looked at alone."""
        return self._chains.get(kind, ())

    @property
    def examples(self) -> Sequence[Gang]:
        """One gang of each kind that waits or has waited."""
        return self._kinds.examples

    @property
    def chains(self) -> Iterable[Sequence[Gang]]:
        """All of them, kind by kind; who is looked at alone is a chain of one."""
        yield from filter(None, self._chains.values())
        yield from ((gang,) for gang in self._alone.values())

    @property
    def alone(self) -> Iterable[Gang]:
        """Those that are looked at one by one."""
        return self._alone.values()

    def _add(self, gang: Gang) -> None:
        kind = self._kind_of[id(gang)] = self._kinds.of(gang)
        if is_alone(gang):
            self._alone[id(gang)] = gang
            return
        chain = self._chains.setdefault(kind, [])
        if chain and turn(chain[-1]) > turn(gang):
            insort(chain, gang, key=turn)
        else:
            chain.append(gang)

    def _stand(self, gangs: list[Gang]) -> None:
        self.gangs = gangs
        self.ids = list(map(id, gangs))
        self.uids = [gang.uid for gang in gangs]
        self._turns = list(map(turn, gangs))

    def _enter(self, place: int, gang: Gang) -> None:
        self.gangs.insert(place, gang)
        self.ids.insert(place, id(gang))
        self.uids.insert(place, gang.uid)
        self._turns.insert(place, turn(gang))

    def _leave(self, place: int) -> None:
        for row in (self.gangs, self.ids, self.uids, self._turns):
            del row[place]

    def _drop(self, gang: Gang) -> None:
        kind = self._kind_of.pop(id(gang))
        if self._alone.pop(id(gang), None) is None:
            gangs = self._chains[kind]
            del gangs[bisect_left(gangs, turn(gang), key=turn)]


def is_alone(gang: Gang) -> bool:
    """Whether a gang has something of its own that others of its kind have not."""
    return bool(gang.group or gang.nominated or gang.retry_at)
