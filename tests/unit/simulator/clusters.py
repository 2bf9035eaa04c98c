"""Builders of small clusters and jobs with plain defaults."""

from __future__ import annotations

from typing import Any

from drumline_scheduler import Gang, Node, Pool, Queue, Resources
from drumline_simulator.cluster import Cluster
from drumline_simulator.workload import Arrival, Execution

PROMPT = Execution(save_seconds=0, checkpoint_seconds=100, restart_seconds=0)
"""Only the jobs take time; a preempted job loses its work since its last checkpoint."""


def a_cluster(*, nodes: int = 2, gpus: int = 8, queues: tuple[Queue, ...] = ()) -> Cluster:
    whole = Resources(gpus=gpus, pods=110)
    return Cluster(
        nodes=tuple(Node(name=f"n{i}", pool="p", allocatable=whole) for i in range(nodes)),
        pools=(Pool(name="p"),),
        queues=queues or (Queue(name="q", nominal={"p": nodes * gpus}),),
    )


def a_job(name: str, *, at: float = 0, seconds: float = 10, gpus: int = 8, **more: Any) -> Arrival:
    fields: dict[str, Any] = {"nodes": 1, "queue": "q", **more}
    per_pod = Resources(gpus=gpus, pods=1)
    gang = Gang(key=f"team/{name}", uid=name, per_pod=per_pod, queued_at=at, **fields)
    return Arrival(gang=gang, duration_seconds=seconds)
