"""The pending gangs in scheduling order and by equivalence class, updated from cycle to cycle.

Few of ten thousand pending gangs are added or removed from one cycle to the next. The order and
class of all others are kept. Gangs are compared by identity: an object that was pending in the last
cycle keeps its index.

Gangs that wait for their predecessors have an index and an answer, but are in no class's chain. No
phase of the cycle sees them. So they hold no gang back, and nothing is kept for them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from operator import indexOf, is_
from typing import Final

from drumline_scheduler.decisions import Blocked
from drumline_scheduler.model import Gang, InvalidSnapshotError, OrderKey, order_key
from drumline_scheduler.queueing.equivalence_classes import EquivalenceClasses

GroupKey = tuple[str, str]
"""Namespace and name of a group."""
_FEW: Final = 500
"""Number of changes above which all gangs are sorted again."""


class PendingGangs:
    """All pending gangs by `order_key`. `gangs`, `uids` and `blocked` have the same order."""

    def __init__(self, classes: EquivalenceClasses) -> None:
        self.gangs: list[Gang] = []
        self.uids: list[str] = []
        self.blocked: list[Blocked | None] = []
        """The answer to each gang whose whole class was rejected. `BlockedCache` writes it."""
        self.added: list[Gang] = []
        """Gangs that were not pending in the last cycle, or have another class."""
        self.removed: list[Gang] = []
        """Gangs that were pending in the last cycle only, or have another class."""
        self.classes = classes
        """The classes of all gangs that are or were pending."""
        self._keys: list[OrderKey] = []
        """Keys in the order of `gangs`."""
        self._given: tuple[Gang, ...] = ()
        """All gangs in the order of the last update's argument."""
        self._by_uid: dict[str, Gang] = {}
        self._class_of: dict[int, int] = {}
        """Class by identity of the gang."""
        self._chains: dict[int, list[Gang]] = {}
        """Gangs by class, each in scheduling order, without gangs that wait for predecessors."""
        self._individual: dict[int, Gang] = {}
        """Gangs for which `is_individual` holds, by identity."""
        self._groups: dict[GroupKey, dict[int, Gang]] = {}
        """Gangs of groups by identity, for each group."""
        self.group_costs: dict[GroupKey, int] = {}
        """Costs of groups of which no gang was added or removed since they were computed."""

    def update(
        self, pending: Iterable[Gang], *, user_limited: frozenset[str] = frozenset()
    ) -> None:
        """Set the pending gangs. O(changes x log pending + pending).

        Args:
            pending: the gangs.
            user_limited: queues with user limits. Their gangs have classes by user. The gangs of a
                queue that has limits now, or has none any more, count as changed.

        Raises:
            InvalidSnapshotError: a gang is listed twice; nothing is changed then.
        """
        given = pending if isinstance(pending, tuple) else tuple(pending)
        removed, added = _changes(self._given, given)
        self._reject_duplicates(given, removed=removed, added=added)
        if changed := self.classes.capped ^ user_limited:
            gone = set(map(id, removed))
            moved = [each for each in self._given if each.queue in changed and id(each) not in gone]
            removed, added = [*removed, *moved], [*added, *moved]
        # 1. Register the changes by uid and class.
        self._given, self.removed, self.added = given, removed, sorted(added, key=order_key)
        for gang in self.removed:
            self._unregister(gang)
        self.classes.capped = user_limited
        for gang in self.added:
            self._register(gang)
        # 2. Update the sorted columns: all at once after many changes, otherwise gang by gang.
        if len(self.removed) + len(self.added) > _FEW:
            self._sort(sorted(given, key=order_key))
            return
        for gang in self.removed:
            self._delete(self.index(gang))
        for gang in self.added:
            self._insert(self.index(gang), gang)

    def reject_admitted(self, uids: Iterable[str]) -> None:
        """Reject gangs that run and wait at the same time.

        Raises:
            InvalidSnapshotError: a gang with one of these uids is pending.
        """
        duplicates = [self._by_uid[uid] for uid in uids if uid in self._by_uid]
        if duplicates:
            raise _duplicate(duplicates)

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def gang(self, uid: str) -> Gang:
        """Return the gang with this uid."""
        return self._by_uid[uid]

    def index(self, gang: Gang) -> int:
        """Return the index in `gangs` that a gang has or would have. O(log pending)."""
        return bisect_left(self._keys, order_key(gang))

    def class_of(self, gang: Gang) -> int:
        """Return the equivalence class of a pending gang."""
        return self._class_of[id(gang)]

    def cost_of(self, gang: Gang) -> int:
        """Return how many ordinary searches a pending gang costs (`search_costs`)."""
        return self.classes.costs[self._class_of[id(gang)]]

    def costs_of(self, gangs: Iterable[Gang]) -> list[int]:
        """Return the cost of each class of some pending gangs."""
        return [self.classes.costs[number] for number in {*map(self.class_of, gangs)}]

    def members(self, number: int) -> Sequence[Gang]:
        """Return all gangs of a class, without the individual ones."""
        return self._chains.get(number, ())

    @property
    def chains_by_class(self) -> Iterable[tuple[int, Sequence[Gang]]]:
        """All gangs by class, without the individual ones."""
        return ((number, chain) for number, chain in self._chains.items() if chain)

    @property
    def chains(self) -> Iterable[Sequence[Gang]]:
        """All gangs, class by class. An individual gang is a chain of its own."""
        yield from filter(None, self._chains.values())
        yield from ((gang,) for gang in self._individual.values())

    @property
    def individual(self) -> Iterable[Gang]:
        """The gangs that get an answer of their own."""
        return self._individual.values()

    @property
    def groups(self) -> Iterable[tuple[GroupKey, Collection[Gang]]]:
        """The waiting gangs of each group, by namespace and name of the group."""
        return ((key, gangs.values()) for key, gangs in self._groups.items())

    def group(self, key: GroupKey) -> Collection[Gang]:
        """Return the waiting gangs of a group."""
        return self._groups.get(key, {}).values()

    def _reject_duplicates(
        self, given: Sequence[Gang], *, removed: Sequence[Gang], added: Sequence[Gang]
    ) -> None:
        """Check for two gangs with one uid, before anything is changed.

        Raises:
            InvalidSnapshotError: two gangs have one uid.
        """
        left, uids = {gang.uid for gang in removed}, {gang.uid for gang in added}
        is_known = any(uid in self._by_uid and uid not in left for uid in uids)
        # The same object listed twice is neither removed nor added. Only the length shows it.
        expected = len(self._given) - len(removed) + len(added)
        if is_known or len(uids) < len(added) or len(given) > expected:
            seen: set[str] = set()
            raise _duplicate([gang for gang in given if gang.uid in seen or seen.add(gang.uid)])

    def _register(self, gang: Gang) -> None:
        self._by_uid[gang.uid] = gang
        number = self._class_of[id(gang)] = self.classes.number_of(gang)
        if gang.after:
            return
        if is_individual(gang):
            self._individual[id(gang)] = gang
            if gang.group:
                self._groups.setdefault(_group_key(gang), {})[id(gang)] = gang
                self.group_costs.pop(_group_key(gang), None)
            return
        chain = self._chains.setdefault(number, [])
        if chain and order_key(chain[-1]) > order_key(gang):
            insort(chain, gang, key=order_key)
        else:
            chain.append(gang)

    def _unregister(self, gang: Gang) -> None:
        del self._by_uid[gang.uid]
        number = self._class_of.pop(id(gang))
        if gang.after:
            return
        if self._individual.pop(id(gang), None) is None:
            chain = self._chains[number]
            del chain[bisect_left(chain, order_key(gang), key=order_key)]
        elif gang.group:
            key = _group_key(gang)
            self.group_costs.pop(key, None)
            del self._groups[key][id(gang)]
            if not self._groups[key]:
                del self._groups[key]

    def _sort(self, gangs: list[Gang]) -> None:
        blocked = dict(zip(map(id, self.gangs), self.blocked, strict=True))
        self.gangs = gangs
        self.blocked = list(map(blocked.get, map(id, gangs)))
        self.uids = [gang.uid for gang in gangs]
        self._keys = list(map(order_key, gangs))

    def _insert(self, index: int, gang: Gang) -> None:
        self.gangs.insert(index, gang)
        self.uids.insert(index, gang.uid)
        self.blocked.insert(index, None)
        self._keys.insert(index, order_key(gang))

    def _delete(self, index: int) -> None:
        for column in (self.gangs, self.uids, self.blocked, self._keys):
            del column[index]


def _group_key(gang: Gang) -> GroupKey:
    return gang.namespace, gang.group


def is_individual(gang: Gang) -> bool:
    """Return whether a gang needs its own answer: for a group, nomination, backoff or override."""
    return bool(gang.group or gang.nominated or gang.retry_at or gang.override)


def _changes(before: Sequence[Gang], now: Sequence[Gang]) -> tuple[list[Gang], list[Gang]]:
    """Return the removed and the added gangs, by identity.

    A common head and tail of both are skipped without a set, which runs in C. Usually a few gangs
    end somewhere and others are appended.
    """
    head = _same_prefix(before, now)
    before, now = before[head:], now[head:]
    tail = _same_prefix(before[::-1], now[::-1])
    before, now = before[: len(before) - tail], now[: len(now) - tail]
    old_ids, new_ids = set(map(id, before)), set(map(id, now))
    removed = [gang for gang in before if id(gang) not in new_ids]
    return removed, [gang for gang in now if id(gang) not in old_ids]


def _same_prefix(first: Sequence[Gang], second: Sequence[Gang]) -> int:
    """Return the length of the common prefix of two lists, by identity."""
    try:
        return indexOf(map(is_, first, second), False)
    except ValueError:
        return min(len(first), len(second))


def _duplicate(duplicates: Iterable[Gang]) -> InvalidSnapshotError:
    first = min(duplicates, key=order_key)
    return InvalidSnapshotError(f"{first.key} ({first.uid}) waits twice or is admitted already")
