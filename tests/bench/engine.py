"""Milliseconds of one scheduling cycle at the shapes the cluster benchmark uses.

Run: python -m tests.bench.engine (with operator/ on PYTHONPATH).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from drumline.scheduling import (
    Decisions,
    Gang,
    Node,
    Policy,
    Pool,
    Queue,
    Resources,
    Snapshot,
    decide,
)

_POD = Resources(gpus=8, cpu_millis=8000, memory_bytes=64 << 30, pods=1)
_NODE = Resources(gpus=8, cpu_millis=96000, memory_bytes=1 << 40, pods=110)
_POLICY = Policy()


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
        print(f"{name:45} {milliseconds:9.1f} ms   {counts}")


if __name__ == "__main__":
    main()
