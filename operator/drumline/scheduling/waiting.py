"""Those who wait, in order and by kind, brought up to date from one cycle to the next.

Of ten thousand waiting gangs a cycle sees a few new ones and misses a few: the order and the kinds
of all others are those of the cycle before. Gangs are known by identity: an object that was in line
stands where it stood.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from drumline.scheduling.kinds import Kinds
from drumline.scheduling.model import Gang
from drumline.scheduling.ordering import turn


class Waiting:
    """All waiting gangs in the order of their turns."""

    def __init__(self, kinds: Kinds) -> None:
        self.gangs: list[Gang] = []
        self._kinds = kinds
        self._kind_of: dict[int, int] = {}
        """By identity of the gang."""
        self._chains: dict[int, list[Gang]] = {}
        """By kind, in the order of their turns."""
        self._alone: dict[int, Gang] = {}
        """By identity: those that are looked at one by one, as they have something of their own: a
        group, kept places, or a try that was rejected."""

    def update(self, pending: Iterable[Gang]) -> None:
        """Let those stand in line who wait now. O(changes x log waiting + waiting)."""
        now = {id(gang): gang for gang in pending}
        gone = [gang for gang in self.gangs if id(gang) not in now]
        if gone:
            self.gangs = [gang for gang in self.gangs if id(gang) in now]
            for gang in gone:
                self._drop(gang)
        fresh = [gang for key, gang in now.items() if key not in self._kind_of]
        for gang in sorted(fresh, key=turn):
            self._add(gang)
        if 4 * len(fresh) > len(self.gangs):
            self.gangs = sorted(now.values(), key=turn)
        else:
            for gang in fresh:
                insort(self.gangs, gang, key=turn)

    def kind(self, gang: Gang) -> int:
        """The kind of a gang in line."""
        return self._kind_of[id(gang)]

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
        if _is_alone(gang):
            self._alone[id(gang)] = gang
            return
        insort(self._chains.setdefault(kind, []), gang, key=turn)

    def _drop(self, gang: Gang) -> None:
        kind = self._kind_of.pop(id(gang))
        if self._alone.pop(id(gang), None) is None:
            gangs = self._chains[kind]
            del gangs[bisect_left(gangs, turn(gang), key=turn)]


def _is_alone(gang: Gang) -> bool:
    return bool(gang.group or gang.nominated or gang.retry_at)
