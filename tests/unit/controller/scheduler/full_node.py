"""A cluster of one node, for the scheduler's parts."""

from __future__ import annotations

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.lifecycle.model.timestamps import timestamp
from tests.builders import T0
from tests.unit.controller.views import (
    assignment,
    job_view,
    node_view,
    pod_view,
    pool_view,
    queue_view,
)

NOW = T0 + 600


def a_full_node(*, admits_workloads: bool = False) -> ClusterCache:
    """A node whose 8 GPUs a job has held for ten minutes, of an hour at most; another job waits."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW), admits_workloads=admits_workloads)
    state.nodes.on_node(None, node_view())
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    status = {**assignment("node-0"), "phase": "Running", "admittedAt": timestamp(T0)}
    whole = {"nodes": 1, "gpusPerNode": 8, "activeDeadlineSeconds": 3600}
    whole["trainer"] = {"globalBatchSize": 8}
    state.on_job(None, job_view("runs", uid="1", status=status, **whole))
    state.on_pod(None, pod_view("runs", 0, job_uid="1", gpus=8))
    state.on_job(None, job_view("waits", uid="2", **whole))
    return state
