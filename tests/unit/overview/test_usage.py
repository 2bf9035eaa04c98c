"""What was held in a period, by group; the parts add up to the whole."""

from __future__ import annotations

from typing import Any

from drumline.overview.usage import usage_rows
from tests.unit.overview.objects import NOW, a_cluster, a_job, at, running

HOUR = 3600


def ended(name: str, *, created: float, finished: float, productive: int, **spec: Any) -> Any:
    account = {"until": at(finished), "productive": productive}
    status = {"phase": "Succeeded", "finishedAt": at(finished), "gpuSeconds": account}
    return a_job(name, spec=spec, created=created, status=status)


def test_groups_add_up_with_the_largest_first() -> None:
    cluster = a_cluster(
        ended("a", created=-900, finished=-100, productive=100, user="ada"),
        ended("b", created=-900, finished=-100, productive=50, user="ada"),
        ended("c", created=-900, finished=-100, productive=400),
        a_job("d", status={}),
    )
    rows = usage_rows(cluster.jobs, by=("queue", "user"), since=None, now=NOW)
    assert [(row.by, row.jobs, row.gpu_seconds) for row in rows] == [
        (("research", "-"), 1, 400),
        (("research", "ada"), 2, 150),
    ]
    (whole,) = usage_rows(cluster.jobs, by=("queue",), since=None, now=NOW)
    assert whole.gpu_seconds == 550


def test_the_states_sum_to_the_whole_until_now() -> None:
    account = {"until": at(-10), "productive": 70, "starting": 20, "repeated": 5, "recovering": 4}
    cluster = a_cluster(a_job("runs", status=running(gpuSeconds=account)))
    (row,) = usage_rows(cluster.jobs, by=("job",), since=None, now=NOW)
    assert (row.productive, row.starting, row.repeated, row.recovering) == (150, 20, 5, 4)
    assert (row.by, row.gpu_seconds, row.estimated_gpu_seconds) == (("team/runs",), 179, 0)


def test_of_a_job_that_is_older_than_the_period_a_part_counts_and_is_named() -> None:
    cluster = a_cluster(
        ended("before", created=-9 * HOUR, finished=-5 * HOUR, productive=1000),
        ended("across", created=-6 * HOUR, finished=-2 * HOUR, productive=1000),
        ended("within", created=-3 * HOUR, finished=-1 * HOUR, productive=1000),
    )
    (row,) = usage_rows(cluster.jobs, by=("queue",), since=NOW - 4 * HOUR, now=NOW)
    assert (row.jobs, row.gpu_seconds, row.estimated_gpu_seconds) == (2, 1500, 500)
