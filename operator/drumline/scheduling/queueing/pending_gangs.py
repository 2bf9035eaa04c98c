"""Those who wait, in order and by kind, brought up to date from one cycle to the next.

Of ten thousand waiting gangs a cycle sees a few new ones and misses a few: the order and the kinds
of all others are those of the cycle before. Gangs are known by identity: an object that was in line
stands where it stood.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from operator import indexOf, is_
from typing import Final

from drumline.scheduling.decisions import Blocked
from drumline.scheduling.model import Gang
from drumline.scheduling.queueing.equivalence_classes import EquivalenceClasses
from drumline.scheduling.quota.ordering import OrderKey, order_key

_FEW: Final = 500
"""After more changes everybody is sorted anew."""


class PendingGangs:
    """All waiting gangs in the order of their turns."""

    def __init__(self, kinds: EquivalenceClasses) -> None:
        self.gangs: list[Gang] = []
        self.uids: list[str] = []
        """Their uids, and"""
        self.told: list[Blocked | None] = []
        """what they were told as one of their kind, in the same order; `Notices` writes it."""
        self.fresh: list[Gang] = []
        """Those who were not there in the cycle before."""
        self.gone: list[Gang] = []
        """Those who were, and are not any more."""
        self._kinds = kinds
        self._turns: list[OrderKey] = []
        """Theirs, as well."""
        self._given: tuple[Gang, ...] = ()
        """All of them as they were given."""
        self._by_uid: dict[str, Gang] = {}
        self._kind_of: dict[int, int] = {}
        """By identity of the gang."""
        self._chains: dict[int, list[Gang]] = {}
        """By kind, in the order of their turns."""
        self._alone: dict[int, Gang] = {}
        """By identity: those that are looked at one by one, as they have something of their own: a
        group, kept places, or a try that was rejected."""

    def update(self, pending: Iterable[Gang]) -> None:
        """Let those stand in line who wait now. O(changes x log waiting + waiting).

        Raises:
            ValueError: one of them waits twice; all others stand where they stood.
        """
        line = pending if isinstance(pending, tuple) else tuple(pending)
        gone, came = _changes(self._given, line)
        self._reject_twins(line, gone=gone, came=came)
        self._given, self.gone, self.fresh = line, gone, sorted(came, key=order_key)
        for gang in self.gone:
            self._drop(gang)
        for gang in self.fresh:
            self._add(gang)
        if len(self.gone) + len(self.fresh) > _FEW:
            self._stand(sorted(line, key=order_key))
            return
        for gang in self.gone:
            self._leave(self.place(gang))
        for gang in self.fresh:
            self._enter(self.place(gang), gang)

    def reject(self, uids: Iterable[str]) -> None:
        """Raise ValueError where one of these, who are admitted, waits too."""
        twins = [self._by_uid[uid] for uid in uids if uid in self._by_uid]
        if twins:
            raise _twin(twins)

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def place_of(self, uid: str) -> int:
        """Where in `gangs` the gang of this uid stands. O(log waiting)."""
        return self.place(self._by_uid[uid])

    def place(self, gang: Gang) -> int:
        """Where in `gangs` one of them stands, or would stand. O(log waiting)."""
        return bisect_left(self._turns, order_key(gang))

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

    def _reject_twins(
        self, line: Sequence[Gang], *, gone: Sequence[Gang], came: Sequence[Gang]
    ) -> None:
        """Before anything is changed."""
        left, uids = {gang.uid for gang in gone}, {gang.uid for gang in came}
        old = any(uid in self._by_uid and uid not in left for uid in uids)
        if old or len(uids) < len(came) or len(line) > len(self._given) - len(gone) + len(came):
            seen: set[str] = set()
            raise _twin([one for one in line if one.uid in seen or seen.add(one.uid)])

    def _add(self, gang: Gang) -> None:
        self._by_uid[gang.uid] = gang
        kind = self._kind_of[id(gang)] = self._kinds.of(gang)
        if is_alone(gang):
            self._alone[id(gang)] = gang
            return
        chain = self._chains.setdefault(kind, [])
        if chain and order_key(chain[-1]) > order_key(gang):
            insort(chain, gang, key=order_key)
        else:
            chain.append(gang)

    def _stand(self, gangs: list[Gang]) -> None:
        told = dict(zip(map(id, self.gangs), self.told, strict=True))
        self.gangs = gangs
        self.told = list(map(told.get, map(id, gangs)))
        self.uids = [gang.uid for gang in gangs]
        self._turns = list(map(order_key, gangs))

    def _enter(self, place: int, gang: Gang) -> None:
        self.gangs.insert(place, gang)
        self.uids.insert(place, gang.uid)
        self.told.insert(place, None)
        self._turns.insert(place, order_key(gang))

    def _leave(self, place: int) -> None:
        for row in (self.gangs, self.uids, self.told, self._turns):
            del row[place]

    def _drop(self, gang: Gang) -> None:
        del self._by_uid[gang.uid]
        kind = self._kind_of.pop(id(gang))
        if self._alone.pop(id(gang), None) is None:
            gangs = self._chains[kind]
            del gangs[bisect_left(gangs, order_key(gang), key=order_key)]


def is_alone(gang: Gang) -> bool:
    """Whether a gang has something of its own that others of its kind have not."""
    return bool(gang.group or gang.nominated or gang.retry_at)


def _changes(before: Sequence[Gang], line: Sequence[Gang]) -> tuple[list[Gang], list[Gang]]:
    """Who has gone and who has come. What begins and ends alike is only run through, in C."""
    head = _alike(before, line)
    before, line = before[head:], line[head:]
    tail = _alike(before[::-1], line[::-1])
    before, line = before[: len(before) - tail], line[: len(line) - tail]
    then, now = set(map(id, before)), set(map(id, line))
    gone = [gang for gang in before if id(gang) not in now]
    return gone, [gang for gang in line if id(gang) not in then]


def _alike(some: Sequence[Gang], others: Sequence[Gang]) -> int:
    """How many of the first are the same objects."""
    try:
        return indexOf(map(is_, some, others), False)
    except ValueError:
        return min(len(some), len(others))


def _twin(twins: Iterable[Gang]) -> ValueError:
    first = min(twins, key=order_key)
    return ValueError(f"{first.key} ({first.uid}) waits twice or is admitted already")
