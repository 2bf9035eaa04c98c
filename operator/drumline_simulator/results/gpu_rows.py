"""Assign chart rows, one per GPU, to allocations, because the scheduler only counts GPUs.

Every GPU of the cluster gets a row, node after node. A job takes the lowest free rows of its node,
adjacent ones if possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from drumline_scheduler import Node
from drumline_simulator.results.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBlock:
    """Adjacent rows that a job held for a period."""

    job: int
    row: int
    rows: int
    begins_at: float
    ends_at: float


def blocks(outcome: Outcome, nodes: Sequence[Node]) -> Iterator[GpuBlock]:
    """Return the allocations on some nodes as rows. O(pods log pods).

    Args:
        outcome: outcome of the simulation.
        nodes: nodes to include. Their GPUs are the rows, in this order.
    """
    first: dict[str, int] = {}
    free: dict[str, set[int]] = {}
    row = 0
    for node in nodes:
        first[node.name] = row
        free[node.name] = set(range(node.allocatable.gpus))
        row += node.allocatable.gpus
    held: list[tuple[float, str, tuple[int, ...]]] = []
    for allocation in sorted(
        outcome.allocations, key=lambda each: (each.begins_at, each.ends_at, each.job)
    ):
        while held and held[0][0] <= allocation.begins_at:
            _, name, rows = heappop(held)
            free[name] |= set(rows)
        per_pod = allocation.gpus // len(allocation.nodes)
        for name, pods in Counter(allocation.nodes).items():
            if name not in first or allocation.ends_at <= allocation.begins_at:
                continue
            rows = tuple(sorted(free[name])[: pods * per_pod])
            free[name] -= set(rows)
            heappush(held, (allocation.ends_at, name, rows))
            for start, length in _runs(rows):
                yield GpuBlock(
                    job=allocation.job,
                    row=first[name] + start,
                    rows=length,
                    begins_at=allocation.begins_at,
                    ends_at=allocation.ends_at,
                )


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return runs of consecutive rows as (first, length)."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1:
            yield rows[start], end - start
            start = end
