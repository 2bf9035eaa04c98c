from __future__ import annotations

from drumline_scheduler import Node, Policy, Resources
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.results.gpu_rows import GpuBlock, blocks
from drumline_simulator.results.outcome import Allocation, Outcome
from tests.unit.simulator.clusters import PROMPT, a_cluster, a_job

NODES = [
    Node(name=name, pool="p", allocatable=Resources(gpus=4, pods=110)) for name in ("n0", "n1")
]


def outcome(*allocations: Allocation) -> Outcome:
    return Outcome(
        jobs=(),
        allocations=allocations,
        evictions=(),
        forecasts=(),
        moved=0,
        resized=0,
        cycles=0,
        gpus=8,
        began_at=0,
        ended_at=10,
    )


def an_allocation(
    job: int, begins: float, ends: float, *, gpus: int, nodes: tuple[str, ...]
) -> Allocation:
    return Allocation(job=job, begins_at=begins, ends_at=ends, gpus=gpus, nodes=nodes)


def a_block(job: int, row: int, rows: int, begins: float, ends: float) -> GpuBlock:
    return GpuBlock(job=job, row=row, rows=rows, begins_at=begins, ends_at=ends)


def test_jobs_take_the_lowest_free_rows_of_their_nodes() -> None:
    held = outcome(
        an_allocation(0, 0, 5, gpus=1, nodes=("n0",)),
        an_allocation(1, 0, 9, gpus=1, nodes=("n0",)),
        an_allocation(2, 5, 9, gpus=6, nodes=("n0", "n1")),
    )
    assert list(blocks(held, NODES)) == [
        a_block(0, 0, 1, 0, 5),
        a_block(1, 1, 1, 0, 9),
        a_block(2, 0, 1, 5, 9),
        a_block(2, 2, 2, 5, 9),
        a_block(2, 4, 3, 5, 9),
    ]


def test_nodes_that_are_not_shown_have_no_rows() -> None:
    held = outcome(an_allocation(0, 0, 5, gpus=2, nodes=("n0", "n1")))
    assert list(blocks(held, NODES[1:])) == [a_block(0, 0, 1, 0, 5)]


def test_jobs_never_share_a_row() -> None:
    jobs = [a_job(f"j{i}", at=i % 7, seconds=3 + i % 5, gpus=1 + i % 4) for i in range(60)]
    cluster = a_cluster(nodes=2, gpus=4)
    ran = simulate(cluster=cluster, arrivals=jobs, policy=Policy(), execution=PROMPT)
    drawn = list(blocks(ran, cluster.nodes))
    held = sum(block.rows * (block.ends_at - block.begins_at) for block in drawn)
    assert held == sum(
        allocation.gpus * (allocation.ends_at - allocation.begins_at)
        for allocation in ran.allocations
    )
    for block in drawn:
        for other in drawn:
            apart = (
                block is other
                or block.ends_at <= other.begins_at
                or other.ends_at <= block.begins_at
                or block.row + block.rows <= other.row
                or other.row + other.rows <= block.row
            )
            assert apart
