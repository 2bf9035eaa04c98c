"""A cluster that admits other workloads than jobs, and what these and their queue hold there."""

from __future__ import annotations

from typing import Any

from drumline.controller.cache.cluster import ClusterCache
from drumline.controller.cache.nodes import NodeCache
from drumline.controller.cache.workloads import Workloads
from drumline.kube.views import GateView, PlacementView, PodView
from tests.unit.controller.views import foreign_pod, node_view, pool_view, queue_view

NOW = 1_800_000_000.0
LABELS = {"drumline.dev/queue": "research"}


def two_nodes(*, quota: int) -> ClusterCache:
    """Two nodes of eight GPUs, and a queue of so many."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW), admits_workloads=True)
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view(gpus=quota))
    for name in ("node-0", "node-1"):
        state.nodes.on_node(None, node_view(name))
    return state


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
