"""Clusters of equal nodes, empty or full, and the equal gangs that wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_scheduler import (
    Admitted,
    Gang,
    Node,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    Snapshot,
    WithinQueue,
)

RULE = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)


def pod(gpus: int) -> Resources:
    """A pod that asks for GPUs, and CPU and memory in proportion."""
    return Resources(gpus=gpus, cpu_millis=1000 * gpus, memory_bytes=gpus << 33, pods=1)


def empty(*, nodes: int, gpus: int = 8, rack: int = 20, levels: int = 1, fan: int = 8) -> Snapshot:
    """Nodes in racks of equal size and one queue that may use them all.

    With more levels, `fan` domains of each make one of the next wider.
    """
    return Snapshot(
        nodes=tuple(
            Node(
                name=f"node-{i:05}",
                pool="h100",
                allocatable=Resources(gpus=gpus, cpu_millis=96000, memory_bytes=1 << 40, pods=110),
                domains=tuple(
                    f"level-{up}-{i // (rack * fan**up):03}" for up in reversed(range(levels))
                ),
            )
            for i in range(nodes)
        ),
        pools=(Pool(name="h100", levels=("rack", "block", "zone")[:levels][::-1]),),
        queues=(Queue(name="research", nominal={"h100": gpus * nodes}),),
    )


def gangs(count: int, *, pods: int, gpus: int = 8, **changes: Any) -> list[Gang]:
    """Equal gangs, one older than the other."""
    return [
        replace(
            Gang(
                key=f"team/job-{i:05}",
                uid=f"uid-{i:05}",
                queue="research",
                nodes=pods,
                per_pod=pod(gpus),
                queued_at=float(i),
            ),
            **changes,
        )
        for i in range(count)
    ]


def running(
    name: str, *, on: tuple[str, ...], gpus: int, at_risk: float, **changes: Any
) -> Admitted:
    """A gang that runs on these nodes, one pod on each."""
    gang = Gang(
        key=f"team/{name}",
        uid=name,
        queue="research",
        nodes=len(on),
        per_pod=pod(gpus),
        queued_at=0.0,
    )
    return Admitted(
        gang=replace(gang, **changes), pool="h100", assignment=on, gpu_seconds_at_risk=at_risk
    )


def with_running(snapshot: Snapshot, held: tuple[Admitted, ...]) -> Snapshot:
    """The snapshot in which these gangs run."""
    used: dict[str, Resources] = {}
    for each_held in held:
        for name in each_held.assignment:
            used[name] = used.get(name, Resources()) + each_held.gang.per_pod
    nodes = tuple(
        replace(node, used=used[node.name]) if node.name in used else node
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=nodes, admitted=held)


def full_of_small(*, nodes: int, deserved: int) -> Snapshot:
    """Every GPU held by a one-GPU job of `queue-0`, which borrows all above what it deserves."""
    held = tuple(
        running(
            f"small-{i:05}",
            on=(f"node-{i // 8:05}",),
            gpus=1,
            at_risk=float(i * 7919 % 600),
            queue="queue-0",
        )
        for i in range(8 * nodes)
    )
    queues = (
        Queue(name="org", nominal={}),
        Queue(name="queue-0", nominal={"h100": deserved}, parent="org"),
        Queue(
            name="research",
            nominal={"h100": 8 * nodes - deserved},
            parent="org",
            preemption=RULE,
        ),
    )
    return replace(with_running(empty(nodes=nodes), held), queues=queues)


def full(*, nodes: int, pods: int) -> Snapshot:
    """Every node held by a gang that nobody may send away."""
    held = tuple(
        running(
            f"low-{i:05}",
            on=tuple(f"node-{i * pods + k:05}" for k in range(pods)),
            gpus=8,
            at_risk=float(i * 7919 % 600),
            priority=-1,
        )
        for i in range(nodes // pods)
    )
    return with_running(empty(nodes=nodes), held)


def full_of_gangs(*, nodes: int, pods: int) -> Snapshot:
    """Every node held by a gang of lower priority than those that wait, and may take its places."""
    snapshot = full(nodes=nodes, pods=pods)
    return replace(
        snapshot, queues=tuple(replace(queue, preemption=RULE) for queue in snapshot.queues)
    )


def three_of_eight(*, nodes: int) -> Snapshot:
    """On each node three one-GPU jobs are left of eight."""
    held = tuple(
        running(f"left-{i:05}", on=(f"node-{i // 3:05}",), gpus=1, at_risk=float(i * 7919 % 60))
        for i in range(3 * nodes)
    )
    return with_running(empty(nodes=nodes), held)
