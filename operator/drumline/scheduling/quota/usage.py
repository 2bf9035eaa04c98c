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
    """The holders of one queue, which never change: whoever changes one makes new usage."""

    def __init__(self, by_uid: Mapping[str, GangUsage]) -> None:
        self.by_uid = by_uid

    @cached_property
    def in_eviction_order(self) -> list[GangUsage]:
        """Those with GPUs in the order of leaving: lowest priority first, then the biggest."""
        held = (usage for usage in self.by_uid.values() if usage.gpus)
        return sorted(held, key=lambda usage: (usage.gang.priority, -usage.gpus, usage.gang.uid))

    @cached_property
    def sums(self) -> UsageTotals:
        """Over all of them."""
        sums = UsageTotals()
        for usage in self.by_uid.values():
            sums.gpus += usage.gpus
            sums.largest = max(sums.largest, usage.gpus)
            level = usage.gang.priority
            sums.by_priority[level] = sums.by_priority.get(level, 0) + usage.gpus
        return sums


class UsageByQueue:
    """Everybody who holds something, by leaf of the queue tree."""

    def __init__(self) -> None:
        self._usage: dict[int, QueueUsage] = {}
        self._own: dict[int, dict[str, GangUsage]] = {}
        """By leaf: holders that no other copy shares."""

    def copy(self) -> UsageByQueue:
        """The same, to be written on separately. O(queues)."""
        twin = UsageByQueue()
        twin._usage = dict(self._usage)
        self._own = {}
        return twin

    def all(self) -> Iterator[GangUsage]:
        """Everybody."""
        for usage in self._usage.values():
            yield from usage.by_uid.values()

    def of(self, *, leaf: int, uid: str) -> GangUsage | None:
        """What a gang holds."""
        usage = self._usage.get(leaf)
        return usage.by_uid.get(uid) if usage else None

    def put(self, holding: GangUsage) -> None:
        """Write down what a gang holds from now on."""
        self._change(holding.leaf)[holding.gang.uid] = holding

    def drop(self, *, leaf: int, uid: str) -> None:
        """Forget a gang."""
        del self._change(leaf)[uid]

    @property
    def leaves(self) -> Iterable[int]:
        """Where somebody holds, or has held, something."""
        return self._usage.keys()

    def in_eviction_order(self, leaf: int) -> list[GangUsage]:
        """Those of a leaf that hold GPUs: the lowest priority first, then the biggest."""
        usage = self._usage.get(leaf)
        return usage.in_eviction_order if usage else []

    def sums(self, leaf: int) -> UsageTotals:
        """What those of a leaf hold together."""
        usage = self._usage.get(leaf)
        return usage.sums if usage else UsageTotals()

    def _change(self, leaf: int) -> dict[str, GangUsage]:
        """The holders of a leaf, to be written on; nothing that was derived of them holds on."""
        if leaf not in self._own:
            before = self._usage.get(leaf)
            self._own[leaf] = dict(before.by_uid) if before else {}
        self._usage[leaf] = QueueUsage(self._own[leaf])
        return self._own[leaf]
