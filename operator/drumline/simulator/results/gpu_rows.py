"""Which GPUs of a node each job had, for a picture: the scheduler counts them only.

Every GPU of the cluster gets a row, node after node. A job takes the free rows of its node from
the lowest on, as many neighbours as it can get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from drumline.scheduling import Node
from drumline.simulator.results.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring GPUs that a job held from one time to another."""

    job: int
    row: int
    rows: int
    begins_at: float
    ends_at: float


def blocks(outcome: Outcome, nodes: Sequence[Node]) -> Iterator[Block]:
    """Everything that was held on some nodes. O(places log places).

    Args:
        outcome: of the simulation.
        nodes: those to look at; their GPUs are the rows, in this order.
    """
    first: dict[str, int] = {}
    free: dict[str, set[int]] = {}
    row = 0
    for node in nodes:
        first[node.name] = row
        free[node.name] = set(range(node.allocatable.gpus))
        row += node.allocatable.gpus
    held: list[tuple[float, str, tuple[int, ...]]] = []
    for span in sorted(outcome.spans, key=lambda one: (one.begins_at, one.ends_at, one.job)):
        while held and held[0][0] <= span.begins_at:
            _, name, seats = heappop(held)
            free[name] |= set(seats)
        per_pod = span.gpus // len(span.nodes)
        for name, pods in Counter(span.nodes).items():
            if name not in first or span.ends_at <= span.begins_at:
                continue
            seats = tuple(sorted(free[name])[: pods * per_pod])
            free[name] -= set(seats)
            heappush(held, (span.ends_at, name, seats))
            for start, length in _runs(seats):
                yield Block(
                    job=span.job,
                    row=first[name] + start,
                    rows=length,
                    begins_at=span.begins_at,
                    ends_at=span.ends_at,
                )


def _runs(seats: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers as (first, how many)."""
    start = 0
    for end in range(1, len(seats) + 1):
        if end == len(seats) or seats[end] != seats[end - 1] + 1:
            yield seats[start], end - start
            start = end
