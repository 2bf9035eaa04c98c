"""Who holds what of one pool's quota, queue by queue.

What is derived of a queue's holders (their order of leaving, their sums) is made when somebody
first asks and stays until one of them changes. Copies share all queues until one of the two books
is written on, so that a cycle which changes two queues copies and sums up two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from drumline.scheduling.model import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class GangUsage:
    """What a gang holds of its quota."""

    gang: Gang
    leaf: int
    size: int
    gpus: int


@dataclass(slots=True)
class UsageTotals:
    """What the gangs of one queue hold together."""

    gpus: int = 0
    largest: int = 0
    """GPUs of the gang that holds most."""
    by_priority: dict[int, int] = field(default_factory=dict[int, int])


class QueueUsage:
    """The holders of one queue, which never change: whoever changes one makes new members."""

    def __init__(self, by_uid: Mapping[str, GangUsage]) -> None:
        self.by_uid = by_uid

    @cached_property
    def line(self) -> list[GangUsage]:
        """Those with GPUs in the order of leaving: lowest priority first, then the biggest."""
        held = (one for one in self.by_uid.values() if one.gpus)
        return sorted(held, key=lambda one: (one.gang.priority, -one.gpus, one.gang.uid))

    @cached_property
    def sums(self) -> UsageTotals:
        """Over all of them."""
        sums = UsageTotals()
        for one in self.by_uid.values():
            sums.gpus += one.gpus
            sums.largest = max(sums.largest, one.gpus)
            level = one.gang.priority
            sums.by_priority[level] = sums.by_priority.get(level, 0) + one.gpus
        return sums


class UsageByQueue:
    """Everybody who holds something, by leaf of the queue tree."""

    def __init__(self) -> None:
        self._members: dict[int, QueueUsage] = {}
        self._own: dict[int, dict[str, GangUsage]] = {}
        """By leaf: holders that no other copy shares."""

    def copy(self) -> UsageByQueue:
        """The same, to be written on separately. O(queues)."""
        twin = UsageByQueue()
        twin._members = dict(self._members)
        self._own = {}
        return twin

    def all(self) -> Iterator[GangUsage]:
        """Everybody."""
        for members in self._members.values():
            yield from members.by_uid.values()

    def of(self, *, leaf: int, uid: str) -> GangUsage | None:
        """What a gang holds."""
        members = self._members.get(leaf)
        return members.by_uid.get(uid) if members else None

    def put(self, holding: GangUsage) -> None:
        """Write down what a gang holds from now on."""
        self._change(holding.leaf)[holding.gang.uid] = holding

    def drop(self, *, leaf: int, uid: str) -> None:
        """Forget a gang."""
        del self._change(leaf)[uid]

    @property
    def leaves(self) -> Iterable[int]:
        """Where somebody holds, or has held, something."""
        return self._members.keys()

    def line(self, leaf: int) -> list[GangUsage]:
        """Those of a leaf that hold GPUs: the lowest priority first, then the biggest."""
        members = self._members.get(leaf)
        return members.line if members else []

    def sums(self, leaf: int) -> UsageTotals:
        """What those of a leaf hold together."""
        members = self._members.get(leaf)
        return members.sums if members else UsageTotals()

    def _change(self, leaf: int) -> dict[str, GangUsage]:
        """The holders of a leaf, to be written on; nothing that was derived of them holds on."""
        if leaf not in self._own:
            before = self._members.get(leaf)
            self._own[leaf] = dict(before.by_uid) if before else {}
        self._members[leaf] = QueueUsage(self._own[leaf])
        return self._own[leaf]
