"""Track each queue's decayed usage of the cluster, the input of the fair-share order.

The sums are updated by the scheduler's own `decay` when they are read or a queue's share changes,
which is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumline_scheduler.quota.fair_sharing import decay


class UsageHistory:
    """Dominant share of each queue in seconds, with older usage decayed."""

    def __init__(self, *, half_life_seconds: float, pools: Mapping[str, int]) -> None:
        self._half_life = half_life_seconds
        self._pools = pools
        self._held: dict[str, dict[str, int]] = {}
        self._share: dict[str, float] = {}
        self._usage: dict[str, float] = {}
        self._updated_at: dict[str, float] = {}

    def change(self, *, queue: str, pool: str, gpus: int, now: float) -> None:
        """Add GPUs of a pool to the usage of a queue from now on. Negative: remove them.

        Args:
            queue: name of the queue.
            pool: name of the pool.
            gpus: GPUs to add.
            now: seconds of the virtual clock.
        """
        self._update(queue, now)
        held = self._held.setdefault(queue, {})
        held[pool] = held.get(pool, 0) + gpus
        self._share[queue] = max(held[name] / self._pools[name] for name in held)

    def at(self, now: float) -> dict[str, float]:
        """Return the usage of every queue that ever held a GPU."""
        for queue in self._held:
            self._update(queue, now)
        return dict(self._usage)

    def _update(self, queue: str, now: float) -> None:
        before = self._usage.get(queue, 0.0)
        after = decay(
            history={queue: before},
            shares={queue: self._share.get(queue, 0.0)},
            seconds=now - self._updated_at.get(queue, now),
            half_life=self._half_life,
        )
        self._usage[queue] = after.get(queue, 0.0)
        self._updated_at[queue] = now
