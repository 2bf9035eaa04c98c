"""Compute the cost of nodes: leases at a price that changes hourly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from drumline_simulator.cluster import PoolTerms
from drumline_simulator.results.leases import Lease

_HOUR = 3600.0


class HourlyPrices:
    """Price for each pool and hour: its mean, plus or minus at most its swing."""

    def __init__(self, terms: Mapping[str, PoolTerms], *, seed: int) -> None:
        self._terms = terms
        self._seed = seed

    def of(self, pool: str, *, hour: int) -> float:
        """Return the dollars for a GPU in an hour, counted from the beginning."""
        terms = self._terms.get(pool)
        if terms is None:
            return 0.0
        if not terms.price_swing:
            return terms.price_per_gpu_hour
        draw = Random(f"{self._seed}/{pool}/{hour}")  # noqa: S311 - a simulated price
        return terms.price_per_gpu_hour * (1.0 + terms.price_swing * draw.uniform(-1.0, 1.0))

    def cost(self, leases: Iterable[Lease]) -> float:
        """Return the dollars for all leases. O(their hours)."""
        return sum(self._of_lease(lease) for lease in leases)

    def _of_lease(self, lease: Lease) -> float:
        dollars, begin = 0.0, lease.begins_at
        while begin < lease.ends_at:
            hour = int(begin // _HOUR)
            end = min(lease.ends_at, (hour + 1) * _HOUR)
            dollars += lease.gpus * (end - begin) / _HOUR * self.of(lease.pool, hour=hour)
            begin = end
        return dollars
