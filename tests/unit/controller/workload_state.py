"""A cluster of two nodes, its jobs and other workloads, and what these hold there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.workloads import Workloads
from drumline.kube.views import GateView, PlacementView, PodView
from drumline.lifecycle.model.job import Job
from drumline_scheduler.model import Node
from tests.unit.controller.views import foreign_pod, node_view, pool_view, queue_view

NOW = 1_800_000_000.0
KEY = "team/llama"
"""Of the one job."""
LABELS = {"drumline.dev/queue": "research"}


def two_nodes(*, quota: int) -> ClusterCache:
    """Two nodes of eight GPUs, and a queue of so many; other workloads are admitted, too."""
    return filled(cache(admits_workloads=True), quota=quota)


def cache(**settings: Any) -> ClusterCache:
    """An empty cluster."""
    return ClusterCache(nodes=NodeCache(clock=lambda: NOW), **settings)


def filled(state: ClusterCache, *, quota: int) -> ClusterCache:
    """The same with a pool of two nodes of eight GPUs, and a queue of so many."""
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view(gpus=quota))
    for name in ("node-0", "node-1"):
        state.nodes.on_node(None, node_view(name))
    return state


def node(state: ClusterCache, name: str = "node-0") -> Node:
    """A node as the scheduler sees it."""
    return next(node for node in state.scheduling.snapshot(now=NOW).nodes if node.name == name)


def written(state: ClusterCache, *, version: int, **status: Any) -> Job:
    """The job as it is after a status write of our own was acknowledged."""
    job = state.jobs.get(KEY)
    assert job is not None
    changed = job.status.model_copy(update=status)
    return replace(job, resource_version=str(version), status=changed)


def workloads(state: ClusterCache) -> Workloads:
    assert state.workloads is not None
    return state.workloads


def held_gpus(state: ClusterCache) -> int:
    """GPUs that the queue pays for."""
    admitted = state.scheduling.snapshot(now=NOW).admitted
    return sum(held.gpus for held in admitted if held.gang.queue == "research")


def gated(
    name: str,
    *,
    gpus: int = 4,
    created: str = "2027-01-01T00:00:00Z",
    is_last: bool = True,
    placement: PlacementView | None = None,
    **rest: Any,
) -> PodView:
    """A pod that our gate holds."""
    gate = GateView(created_time=created, is_last=is_last, placement=placement or PlacementView())
    return foreign_pod(name, node="", gpus=gpus, gate=gate, **{"labels": LABELS, **rest})
