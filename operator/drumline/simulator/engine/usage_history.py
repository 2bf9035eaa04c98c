"""Who has used how much of the cluster: the decayed history that fair shares are made of.

The sums are brought up to date by the scheduler's own `decay` when they are read or a queue's share
changes, which is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumline.scheduling.shares.fairshare import decay


class History:
    """By queue: its dominant share of the cluster, times seconds, older use decayed."""

    def __init__(self, *, half_life_seconds: float, pools: Mapping[str, int]) -> None:
        self._half_life = half_life_seconds
        self._pools = pools
        self._held: dict[str, dict[str, int]] = {}
        self._share: dict[str, float] = {}
        self._worth: dict[str, float] = {}
        self._as_of: dict[str, float] = {}

    def change(self, *, queue: str, pool: str, gpus: int, now: float) -> None:
        """A queue holds more, or fewer, GPUs of a pool from now on."""
        self._catch_up(queue, now)
        held = self._held.setdefault(queue, {})
        held[pool] = held.get(pool, 0) + gpus
        self._share[queue] = max(held[name] / self._pools[name] for name in held)

    def at(self, now: float) -> dict[str, float]:
        """The history of every queue that ever held anything."""
        for queue in self._held:
            self._catch_up(queue, now)
        return dict(self._worth)

    def _catch_up(self, queue: str, now: float) -> None:
        before = self._worth.get(queue, 0.0)
        after = decay(
            history={queue: before},
            shares={queue: self._share.get(queue, 0.0)},
            seconds=now - self._as_of.get(queue, now),
            half_life=self._half_life,
        )
        self._worth[queue] = after.get(queue, 0.0)
        self._as_of[queue] = now
