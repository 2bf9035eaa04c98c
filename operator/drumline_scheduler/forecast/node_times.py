"""Learn how long a pool's nodes take to come, and so when a gang that waits for them will start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from drumline_scheduler.autoscaling.node_demands import NodeDemand
from drumline_scheduler.forecast.expected_starts import ExpectedStart

MOST: Final = 20
"""Number of newest times of a pool that count, because clouds change."""
FEWEST: Final = 3
"""Number of times below which no start is forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimes:
    """Whole seconds from the request for nodes to the start of the gang, by pool, the newest last.

    Only gangs that got their nodes count. The chance of getting nodes is not known.
    """

    seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    def with_time(self, pool: str, seconds: float) -> NodeTimes:
        """Return these times and one more."""
        newest = (*self.seconds.get(pool, ()), float(max(1, ceil(seconds))))[-MOST:]
        return NodeTimes(seconds={**self.seconds, pool: newest})

    def start(self, pool: str, *, asked_at: float, now: float) -> tuple[float, float] | None:
        """Return the times before which half, and nine in ten, of such gangs have started.

        Only times that are longer than the wait so far count. None if there are too few times, or
        if none is long enough.

        Args:
            pool: the pool that adds nodes.
            asked_at: Unix time of the node request.
            now: Unix time in seconds.
        """
        times = self.seconds.get(pool, ())
        # Requests that took less time than this one are ruled out already.
        longer = sorted(each for each in times if asked_at + each >= now)
        if len(times) < FEWEST or not longer:
            return None
        middle, late = (longer[int(share * (len(longer) - 1) + 0.5)] for share in (0.5, 0.9))
        return asked_at + middle, asked_at + late


def node_starts(
    demands: Iterable[NodeDemand], *, times: NodeTimes, now: float
) -> dict[str, ExpectedStart]:
    """Return the expected starts, by uid, of gangs whose pool has let enough others start.

    Args:
        demands: open requests for nodes.
        times: how long recent requests took.
        now: seconds on the clock of `asked_at`.
    """
    starts: dict[str, ExpectedStart] = {}
    for demand in demands:
        if demand.started_at is None:
            start = times.start(demand.pool, asked_at=demand.asked_at, now=now)
            if start is not None:
                p50_at, p90_at = start
                starts[demand.uid] = ExpectedStart(
                    key=demand.key, uid=demand.uid, p50_at=p50_at, p90_at=p90_at
                )
    return starts
