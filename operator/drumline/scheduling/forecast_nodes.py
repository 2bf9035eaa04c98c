"""When gangs that wait for nodes of an autoscaler will probably start."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.scheduling.forecast import ExpectedStart
from drumline.scheduling.node_demands import NodeDemand
from drumline.scheduling.node_times import NodeTimes


def node_starts(
    demands: Iterable[NodeDemand], *, times: NodeTimes, now: float
) -> dict[str, ExpectedStart]:
    """The expected starts, by uid, of gangs whose pool has let enough others start.

    Args:
        demands: what is asked for.
        times: how long the last ones took.
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
