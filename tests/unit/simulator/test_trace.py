from __future__ import annotations

from typing import Any

import pytest

from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.trace import TraceJob, read, write
from tests.unit.simulator.clusters import a_cluster

HEADER = "submit_seconds,gpus,duration_seconds,user"


def jobs(*lines: str) -> list[TraceJob]:
    return list(read(lines, file="t.csv"))


def test_four_columns_are_enough() -> None:
    assert jobs(HEADER, "0.5,8,60,ann", "", "2,1,3.25,bob") == [
        TraceJob(line=2, name="job-1", submit_seconds=0.5, gpus=8, duration_seconds=60, user="ann"),
        TraceJob(line=4, name="job-3", submit_seconds=2, gpus=1, duration_seconds=3.25, user="bob"),
    ]


def test_what_is_written_is_read_again() -> None:
    held = [
        TraceJob(
            line=2,
            name="a",
            submit_seconds=0.25,
            gpus=16,
            duration_seconds=60.125,
            user="ann, the first",
            queue="q",
            priority=-5,
            nodes=4,
            min_nodes=2,
            max_runtime_seconds=90,
            required_level="rack",
            preferred_level="host",
        ),
        TraceJob(line=3, name="b", submit_seconds=1, gpus=1, duration_seconds=2, user="bob"),
    ]
    assert list(read(write(held).splitlines(), file="t.csv")) == held


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["submit_seconds,gpus,user"], "t.csv, line 1, field duration_seconds: this column is"),
        ([HEADER + ",prioriti"], "t.csv, line 1, field prioriti: unknown column"),
        ([HEADER + ",user"], "t.csv, line 1, field user: this column occurs twice"),
        ([HEADER, "0,8,60"], "t.csv, line 2: has 3 cells, the header has 4"),
        ([HEADER, "0,1,1,a", "0,eight,60,a"], "t.csv, line 3, field gpus: must be a number"),
        ([HEADER, "0,0,60,a"], "t.csv, line 2, field gpus: must be at least 1, got '0'"),
        ([HEADER, "0,1.5,60,a"], "t.csv, line 2, field gpus: must be a whole number"),
        ([HEADER, "0,1,-60,a"], "t.csv, line 2, field duration_seconds: must not be negative"),
        ([HEADER, "0,1,inf,a"], "t.csv, line 2, field duration_seconds: must be a number"),
        ([HEADER + ",nodes", "0,8,60,a,3"], "t.csv, line 2, field nodes: 8 GPUs cannot be spread"),
        ([HEADER + ",min_nodes", "0,8,60,a,3"], "t.csv, line 2, field min_nodes: must be at most"),
        ([], "t.csv, line 1, field submit_seconds: this column is missing"),
    ],
)
def test_errors_name_the_line_and_the_field(lines: list[str], message: str) -> None:
    with pytest.raises(InvalidFileError) as caught:
        jobs(*lines)
    assert str(caught.value).startswith(message)


def job(**fields: Any) -> TraceJob:
    plain: dict[str, Any] = {"line": 7, "name": "a", "submit_seconds": 100, "gpus": 8}
    plain |= {"duration_seconds": 60, "user": "ann"} | fields
    return TraceJob(**plain)


@pytest.mark.parametrize(
    ("gpus", "pods"), [(1, (1, 1)), (8, (1, 8)), (12, (2, 6)), (16, (2, 8)), (13, (13, 1))]
)
def test_a_job_gets_the_fewest_nodes_that_divide_its_gpus(gpus: int, pods: tuple[int, int]) -> None:
    (arrival,) = to_arrivals([job(gpus=gpus)], cluster=a_cluster(), default_queue="q", file="t")
    assert (arrival.gang.nodes, arrival.gang.per_pod.gpus) == pods


def test_times_count_from_the_first_submission_and_sizes_from_the_smallest() -> None:
    held = [job(nodes=4, min_nodes=2), job(submit_seconds=130, queue="q", user="bob")]
    first, second = to_arrivals(held, cluster=a_cluster(), default_queue="q", file="t")
    assert (first.gang.queued_at, second.gang.queued_at) == (0, 30)
    assert first.gang.sizes == (2, 3, 4)
    assert (first.gang.user, second.gang.user) == ("ann", "bob")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"gpus": 16, "nodes": 1, "queue": "q"},
            "t, line 7, field gpus: 16 GPUs per node, but the largest",
        ),
        ({"queue": "other"}, "t, line 7, field queue: queue 'other' is not in the cluster"),
        (
            {"required_level": "rack", "queue": "q"},
            "t, line 7, field required_level: no pool of the cluster",
        ),
        ({"queue": "other", "line": None}, "t, job a, field queue: queue 'other'"),
    ],
)
def test_a_job_that_cannot_run_on_the_cluster_is_rejected(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidFileError) as caught:
        to_arrivals([job(**fields)], cluster=a_cluster(), default_queue="", file="t")
    assert str(caught.value).startswith(message)
