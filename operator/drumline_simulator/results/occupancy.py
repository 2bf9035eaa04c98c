"""Compute how much of the GPU-time that somebody wanted was held.

At each moment no scheduler can have more GPUs held than are in service, or than all jobs want that
have been submitted and have not ended. The integral of the smaller number is the bound of a
work-conserving scheduler. It ignores quotas, the sizes of gangs and topology, so no scheduler
reaches it.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline_simulator.cluster import Cluster
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.workload import Outage

_Change = tuple[float, int, int]
"""Time, change of the GPUs in service, change of the wanted GPUs."""


def occupancy(outcome: Outcome, *, cluster: Cluster, outages: Iterable[Outage]) -> float:
    """Return the held GPU-seconds as a fraction of the work-conserving bound.

    Nodes that an autoscaler may add count as in service. O(n log n) for n jobs and outages.

    Args:
        outcome: the simulation.
        cluster: its nodes.
        outages: periods in which nodes were out of service; those of one node do not overlap.
    """
    held = sum(each.gpus * (each.ends_at - each.begins_at) for each in outcome.allocations)
    bound = _bound(outcome, cluster=cluster, outages=outages)
    return held / bound if bound else 0.0


def _bound(outcome: Outcome, *, cluster: Cluster, outages: Iterable[Outage]) -> float:
    gpus = {node.name: node.allocatable.gpus for node in cluster.nodes}
    changes: list[_Change] = []
    for outage in outages:
        changes.append((outage.at, -gpus[outage.node], 0))
        changes.append((outage.at + outage.seconds, gpus[outage.node], 0))
    for job in outcome.jobs:
        changes.append((job.submitted_at, 0, job.gpus))
        if job.ended_at is not None:
            changes.append((job.ended_at, 0, -job.gpus))
    in_service, wanted, bound, since = outcome.gpus, 0, 0.0, outcome.began_at
    for at, service, demand in sorted(changes):
        until = min(max(at, since), outcome.ended_at)
        bound += min(in_service, wanted) * (until - since)
        since, in_service, wanted = until, in_service + service, wanted + demand
    return bound + min(in_service, wanted) * (outcome.ended_at - since)
