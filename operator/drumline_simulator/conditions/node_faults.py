"""Draw the failures and spot reclaims of every node from a seed.

Each node has its own stream of random numbers, so a node more or less changes nothing for the
others. While a node is away nothing happens to it. Times are rounded to seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from drumline_scheduler import Node
from drumline_simulator.cluster import Cluster
from drumline_simulator.conditions.rates import FailureRates, SpotRates
from drumline_simulator.workload import Outage, ProcessFault

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaults:
    """Events of the nodes, in order of time."""

    outages: tuple[Outage, ...] = ()
    faults: tuple[ProcessFault, ...] = ()


def draw_node_faults(
    cluster: Cluster,
    *,
    failures: FailureRates,
    spot: Mapping[str, SpotRates],
    seconds: float,
    seed: int,
) -> NodeFaults:
    """Draw the events of the nodes.

    Args:
        cluster: cluster of the nodes.
        failures: failure rates of all nodes.
        spot: reclaim rates by spot pool.
        seconds: length of the simulation.
        seed: the same seed gives the same events.
    """
    events: list[Outage | ProcessFault] = []
    for node in cluster.nodes:
        events += _of_node(
            node,
            failures=failures,
            spot=spot.get(node.pool),
            seconds=seconds,
            draw=Random(f"{seed}/{node.name}"),  # noqa: S311 - simulated failures
        )
    events.sort(key=lambda event: (event.at, event.node))
    return NodeFaults(
        outages=tuple(event for event in events if isinstance(event, Outage)),
        faults=tuple(event for event in events if isinstance(event, ProcessFault)),
    )


def _of_node(
    node: Node, *, failures: FailureRates, spot: SpotRates | None, seconds: float, draw: Random
) -> Iterator[Outage | ProcessFault]:
    now = 0.0
    failure_seconds = failures.gpu_hours * _HOUR / node.allocatable.gpus
    failure_at = now + _exponential(draw, failure_seconds)
    reclaim_at = _next_reclaim(draw, spot, now=now)
    while min(failure_at, reclaim_at) < seconds:
        if reclaim_at <= failure_at and spot is not None:
            away = 1.0 + round(_exponential(draw, spot.away_seconds))
            yield Outage(
                node=node.name,
                at=round(reclaim_at),
                seconds=away,
                notice_seconds=spot.notice_seconds,
            )
            now = reclaim_at + away
        else:
            event = _failure(node.name, failures=failures, at=round(failure_at), draw=draw)
            yield event
            now = failure_at + (event.seconds if isinstance(event, Outage) else 0.0)
        if failure_at <= now:
            failure_at = now + _exponential(draw, failure_seconds)
        if spot is not None and reclaim_at <= now + spot.notice_seconds:
            reclaim_at = _next_reclaim(draw, spot, now=now)


def _failure(
    name: str, *, failures: FailureRates, at: float, draw: Random
) -> Outage | ProcessFault:
    kind = draw.random()
    if kind < failures.process_share:
        return ProcessFault(node=name, at=at, part=draw.random())
    if kind < failures.process_share + failures.hang_share:
        return ProcessFault(node=name, at=at, part=draw.random(), hangs=True)
    return Outage(node=name, at=at, seconds=max(1.0, failures.repair_seconds))


def _next_reclaim(draw: Random, spot: SpotRates | None, *, now: float) -> float:
    """Return the next notice, which is never before the node is back."""
    if spot is None:
        return float("inf")
    return now + spot.notice_seconds + 1.0 + _exponential(draw, spot.node_hours * _HOUR)


def _exponential(draw: Random, mean: float) -> float:
    return float("inf") if mean == float("inf") else draw.expovariate(1 / mean) if mean else 0.0
