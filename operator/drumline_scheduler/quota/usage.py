"""Quota usage of one pool by gang and by queue.

Values derived from a queue's gangs (their eviction order, their totals) are computed on first use
and kept until one of the gangs changes. Copies share the queues until one of the copies is changed.
So a cycle that changes two queues copies two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from drumline_scheduler.model import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class GangUsage:
    """The usage of its queue's quota by one gang."""

    gang: Gang
    leaf: int
    size: int
    gpus: int


@dataclass(slots=True)
class UsageTotals:
    """Totals over the gangs of one queue."""

    gpus: int = 0
    largest: int = 0
    """GPUs of the largest gang."""
    by_priority: dict[int, int] = field(default_factory=dict[int, int])


class QueueUsage:
    """The gangs of one queue. Immutable, so a change makes a new value."""

    def __init__(self, by_uid: Mapping[str, GangUsage]) -> None:
        self.by_uid = by_uid

    @cached_property
    def in_eviction_order(self) -> list[GangUsage]:
        """The gangs with GPUs: lowest priority first, then the largest, then by uid."""
        held = (usage for usage in self.by_uid.values() if usage.gpus)
        return sorted(held, key=lambda usage: (usage.gang.priority, -usage.gpus, usage.gang.uid))

    @cached_property
    def sums(self) -> UsageTotals:
        """The totals of the queue."""
        by_priority: dict[int, int] = {}
        gpus = [usage.gpus for usage in self.by_uid.values()]
        levels = [usage.gang.priority for usage in self.by_uid.values()]
        for level, held in zip(levels, gpus, strict=True):
            by_priority[level] = by_priority.get(level, 0) + held
        return UsageTotals(gpus=sum(gpus), largest=max(gpus, default=0), by_priority=by_priority)


class UsageByQueue:
    """The usage of all queues, by leaf of the queue tree."""

    def __init__(self) -> None:
        self._usage: dict[int, QueueUsage] = {}
        self._own: dict[int, dict[str, GangUsage]] = {}
        """Usage that is not shared with a copy, by leaf."""

    def copy(self) -> UsageByQueue:
        """Return the same usage, to be changed separately. O(queues)."""
        clone = UsageByQueue()
        clone._usage = dict(self._usage)
        # From now on both share every queue, so the next change of either copies the queue first.
        self._own = {}
        return clone

    def all(self) -> Iterator[GangUsage]:
        """Yield the usage of every gang."""
        for usage in self._usage.values():
            yield from usage.by_uid.values()

    def usage_of(self, *, leaf: int, uid: str) -> GangUsage | None:
        """Return the usage of a gang; None if it holds nothing."""
        usage = self._usage.get(leaf)
        return usage.by_uid.get(uid) if usage else None

    def put(self, holding: GangUsage) -> None:
        """Set the usage of a gang."""
        self._change(holding.leaf)[holding.gang.uid] = holding

    def drop(self, *, leaf: int, uid: str) -> None:
        """Remove the usage of a gang."""
        del self._change(leaf)[uid]

    @property
    def leaves(self) -> Iterable[int]:
        """The leaves with usage now or earlier."""
        return self._usage.keys()

    def gangs(self, leaf: int) -> QueueUsage | None:
        """Return the gangs of a leaf: the same object until one of them changes."""
        return self._usage.get(leaf)

    def in_eviction_order(self, leaf: int) -> list[GangUsage]:
        """Return the gangs of a leaf with GPUs: lowest priority first, then the largest."""
        usage = self._usage.get(leaf)
        return usage.in_eviction_order if usage else []

    def sums(self, leaf: int) -> UsageTotals:
        """Return the totals of a leaf."""
        usage = self._usage.get(leaf)
        return usage.sums if usage else UsageTotals()

    def _change(self, leaf: int) -> dict[str, GangUsage]:
        """Return the gangs of a leaf for a change, and drop the values derived from them."""
        if leaf not in self._own:
            before = self._usage.get(leaf)
            self._own[leaf] = dict(before.by_uid) if before else {}
        self._usage[leaf] = QueueUsage(self._own[leaf])
        return self._own[leaf]
