"""Milliseconds of one scheduling cycle at the shapes the cluster benchmark uses.

Run: python -m tests.bench.engine (with operator/ on PYTHONPATH).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from drumline.scheduling import (
    Admitted,
    Decisions,
    Gang,
    Node,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    Snapshot,
    WithinQueue,
    decide,
)

_POD = Resources(gpus=8, cpu_millis=8000, memory_bytes=64 << 30, pods=1)
_NODE = Resources(gpus=8, cpu_millis=96000, memory_bytes=1 << 40, pods=110)
_POLICY = Policy()
_RULE = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)


def cluster(*, nodes: int) -> Snapshot:
    """Nodes of 8 GPUs in racks of 20, and one queue that may use them all."""
    return Snapshot(
        nodes=tuple(
            Node(
                name=f"node-{i:05}",
                pool="h100",
                allocatable=_NODE,
                domains=(f"rack-{i // 20:03}", f"node-{i:05}"),
            )
            for i in range(nodes)
        ),
        pools=(Pool(name="h100", levels=("rack", "host")),),
        queues=(Queue(name="research", nominal={"h100": 8 * nodes}),),
    )


def gangs(*, count: int, pods: int, level: str | None = None) -> list[Gang]:
    """Equal gangs that take whole nodes."""
    return [
        Gang(
            key=f"team/job-{i:05}",
            uid=f"uid-{i:05}",
            queue="research",
            nodes=pods,
            per_pod=_POD,
            queued_at=float(i),
            required_level=level,
        )
        for i in range(count)
    ]


def full_of_small(*, nodes: int, deserved: int) -> Snapshot:
    """Every GPU held by a one-GPU job of queue-0, which borrows all above what it deserves."""
    one = Resources(gpus=1, cpu_millis=1000, pods=1)
    empty = cluster(nodes=nodes)
    running = tuple(
        Admitted(
            gang=Gang(
                key=f"small/job-{i:05}",
                uid=f"small-{i:05}",
                queue="queue-0",
                nodes=1,
                per_pod=one,
                queued_at=float(i),
            ),
            pool="h100",
            assignment=(f"node-{i // 8:05}",),
            gpu_seconds_at_risk=float(i * 7919 % 600),
        )
        for i in range(8 * nodes)
    )
    used = one.times(8)
    return replace(
        empty,
        nodes=tuple(replace(node, used=used) for node in empty.nodes),
        queues=(
            Queue(name="org", nominal={}),
            Queue(name="queue-0", nominal={"h100": deserved}, parent="org"),
            Queue(
                name="research",
                nominal={"h100": 8 * nodes - deserved},
                parent="org",
                preemption=_RULE,
            ),
        ),
        admitted=running,
    )


def full_of_gangs(*, nodes: int, pods: int) -> Snapshot:
    """Every node held by a gang of lower priority than those that wait."""
    empty = cluster(nodes=nodes)
    running = tuple(
        Admitted(
            gang=replace(one, key=f"low/{one.uid}", uid=f"low-{one.uid}", priority=-1),
            pool="h100",
            assignment=tuple(f"node-{i * pods + k:05}" for k in range(pods)),
            gpu_seconds_at_risk=float(i * 7919 % 600),
        )
        for i, one in enumerate(gangs(count=nodes // pods, pods=pods))
    )
    return replace(
        empty,
        nodes=tuple(replace(node, used=_POD) for node in empty.nodes),
        queues=tuple(replace(queue, preemption=_RULE) for queue in empty.queues),
        admitted=running,
    )


def shapes() -> Iterator[tuple[str, Snapshot, list[Gang]]]:
    """The measured shapes by name."""
    small, large = cluster(nodes=500), cluster(nodes=5000)
    yield "500 nodes, 125 gangs of 4", small, gangs(count=125, pods=4)
    yield "500 nodes, 125 gangs of 4, one rack each", small, gangs(count=125, pods=4, level="rack")
    yield "500 nodes, 1 gang of 500", small, gangs(count=1, pods=500)
    yield "500 nodes, 1 gang of 501 refused", small, gangs(count=1, pods=501)
    yield "500 nodes, 1000 gangs of 4, most wait", small, gangs(count=1000, pods=4)
    yield "5000 nodes, 1 gang of 5000", large, gangs(count=1, pods=5000)
    yield "5000 nodes, 1250 gangs of 4", large, gangs(count=1250, pods=4)
    for nodes in (500, 1000):
        name = f"{nodes} nodes, {nodes // 2} x 8 reclaimed from 1-GPU jobs"
        yield name, full_of_small(nodes=nodes, deserved=0), gangs(count=1, pods=nodes // 2)
    name = "1000 nodes, 10 x 8 wanted, 1 GPU too few to reclaim"
    yield name, full_of_small(nodes=1000, deserved=8000 - 79), gangs(count=1, pods=10)
    name = "2000 nodes, 700 candidates, 1 gang of 16, one rack"
    yield name, full_of_gangs(nodes=2100, pods=3), gangs(count=1, pods=16, level="rack")
    yield (
        "500 nodes, 64 of 128 gangs of 4 preempt",
        full_of_gangs(nodes=512, pods=4),
        gangs(count=64, pods=4),
    )


def measure(*, snapshot: Snapshot, pending: list[Gang], rounds: int = 3) -> tuple[float, Decisions]:
    """The best of some rounds in milliseconds, and what was decided."""
    best = float("inf")
    decisions = Decisions()
    for _ in range(rounds):
        start = time.perf_counter()
        decisions = decide(snapshot=snapshot, pending=pending, policy=_POLICY, now=0.0)
        best = min(best, (time.perf_counter() - start) * 1000)
    return best, decisions


def main() -> None:
    """Print one line for each shape."""
    for name, snapshot, pending in shapes():
        milliseconds, decisions = measure(snapshot=snapshot, pending=pending)
        counts = f"{len(decisions.placed)} placed, {len(decisions.blocked)} blocked"
        gone = sum(len(one.victims) for one in decisions.preemptions)
        counts += f", {gone} sent away" if gone else ""
        print(f"{name:53} {milliseconds:9.1f} ms   {counts}")


if __name__ == "__main__":
    main()
