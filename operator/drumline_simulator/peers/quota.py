"""Implement Kueue's quota: nominal quota by queue and flavor, borrowed within a cohort.

A flavor is a pool here. The cohort of a queue is the root of its tree; inner queues of a tree that
have quota of their own take part like any other. Rules: KEP-79 (hierarchical cohorts), and Kueue's
page on ClusterQueues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from drumline_scheduler import Admitted, Queue


class KueueQuota:
    """Quota of each flavor that the queues use. Changed when workloads start and end."""

    def __init__(self, queues: Sequence[Queue], *, admitted: Iterable[Admitted]) -> None:
        """Read the queues.

        Raises:
            ValueError: a queue has a lending limit, which is not modelled.
        """
        self.queues: Mapping[str, Queue] = {queue.name: queue for queue in queues}
        if any(queue.lending_limit for queue in queues):
            raise ValueError("lending limits are not modelled for this scheduler")
        self._cohort = {name: self._root(name) for name in self.queues}
        self._nominal: Counter[tuple[str, str]] = Counter()
        for queue in queues:
            for pool, gpus in queue.nominal.items():
                self._nominal[self._cohort[queue.name], pool] += gpus
        self._used: Counter[tuple[str, str]] = Counter()
        self._cohort_used: Counter[tuple[str, str]] = Counter()
        for held in admitted:
            self.add(held.gang.queue, pool=held.pool, gpus=held.gpus)

    def add(self, queue: str, *, pool: str, gpus: int) -> None:
        """Charge a queue. A negative number gives quota back.

        Args:
            queue: name of the queue.
            pool: name of the pool.
            gpus: number of GPUs.
        """
        self._used[queue, pool] += gpus
        self._cohort_used[self._cohort[queue], pool] += gpus

    def fits(self, queue: str, *, pool: str, gpus: int) -> bool:
        """Return whether a queue may use more GPUs, including borrowed ones.

        Args:
            queue: name of the queue.
            pool: name of the pool.
            gpus: number of GPUs.
        """
        after = self._used[queue, pool] + gpus
        limit = (self.queues[queue].borrowing_limit or {}).get(pool)
        if limit is not None and after > self.nominal(queue, pool=pool) + limit:
            return False
        cohort = self._cohort[queue]
        return self._cohort_used[cohort, pool] + gpus <= self._nominal[cohort, pool]

    def borrows(self, queue: str, *, pool: str, gpus: int = 0) -> bool:
        """Return whether a queue would exceed its nominal quota with more GPUs.

        Args:
            queue: name of the queue.
            pool: name of the pool.
            gpus: number of GPUs.
        """
        return self._used[queue, pool] + gpus > self.nominal(queue, pool=pool)

    def nominal(self, queue: str, *, pool: str) -> int:
        """Return a queue's nominal quota."""
        return self.queues[queue].nominal.get(pool, 0)

    def are_cohort(self, one_queue: str, other: str) -> bool:
        """Return whether two queues may borrow from each other."""
        return self._cohort[one_queue] == self._cohort[other]

    def _root(self, name: str) -> str:
        """Return the last queue in the line of parents. A parent may be missing."""
        seen = {name}
        while name in self.queues:
            parent = self.queues[name].parent
            if parent is None or parent in seen:
                break
            seen.add(parent)
            name = parent
        return name
