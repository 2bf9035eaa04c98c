"""What was held in a period, by group; the parts add up to the whole."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.overview.usage import usage_rows
from drumline_api.conditions import Reason
from tests.builders import EPOCH, T0, admitted, with_status
from tests.builders import a_job as a_lifecycle_job
from tests.unit.overview.objects import NOW, a_cluster, a_job, at, running

HOUR = 3600
SPEC: dict[str, Any] = {
    "nodes": 4,
    "gpusPerNode": 2,
    "minNodes": 1,
    "trainer": {"globalBatchSize": 24},
    "checkpoint": {"claimName": "shared"},
}


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


def test_of_stays_that_are_known_what_lies_in_the_period_counts() -> None:
    stays = [
        {"since": at(-6 * HOUR), "until": at(-5 * HOUR), "gpus": 8},
        {"since": at(-2.5 * HOUR), "until": at(-1.5 * HOUR), "gpus": 4},
    ]
    account = {"until": at(-1.5 * HOUR), "productive": 10 * HOUR, "starting": 2 * HOUR}
    cluster = a_cluster(
        a_job("old", created=-9 * HOUR, status={"gpuSeconds": {**account, "stays": stays}})
    )
    (row,) = usage_rows(cluster.jobs, by=("queue",), since=NOW - 2 * HOUR, now=NOW)
    assert (row.gpu_seconds, row.estimated_gpu_seconds) == (2 * HOUR, 0)
    assert (row.productive, row.starting) == (round(2 * HOUR * 10 / 12), round(2 * HOUR * 2 / 12))
    assert not usage_rows(cluster.jobs, by=("queue",), since=NOW - HOUR, now=NOW)


def test_a_job_that_has_ended_holds_nothing_more() -> None:
    status = running(phase="Succeeded", finishedAt=at(-60))
    status["gpuSeconds"] = {"until": at(-60), "productive": 100}
    cluster = a_cluster(a_job("over", status=status))
    (row,) = usage_rows(cluster.jobs, by=("queue",), since=None, now=NOW)
    assert row.gpu_seconds == 100


@pytest.mark.parametrize("seed", range(4))
def test_what_was_held_in_any_period_is_what_the_life_of_the_job_was(seed: int) -> None:
    """Against a ledger of every second, over starts, losses, growth, preemptions, suspensions."""
    choose = random.Random(seed)
    nodes = ("node-a", "node-b", "node-c", "node-d")
    job, ledger, now = a_lifecycle_job(**SPEC), list[int](), T0
    for _ in range(20):
        job = with_status(job, _next_status(job, choose, nodes, now=now))
        elapsed = choose.choice([1, 30, 700])
        places = job.status.assignment
        gpus = 0 if places is None else 2 * (len(places.nodes) - len(places.lost or ()))
        ledger += [gpus] * elapsed
        now += elapsed
    status = json.loads(job.status.model_dump_json(by_alias=True, exclude_none=True))
    manifest = a_job("life", created=T0 - 1 - NOW, spec=SPEC, status=status)
    cluster = a_cluster(manifest, as_of=now)
    for since in range(int(T0), int(now), 97):
        rows = usage_rows(cluster.jobs, by=("job",), since=since, now=now)
        counted = rows[0].gpu_seconds if rows else 0
        assert counted == pytest.approx(sum(ledger[since - int(T0) :]), rel=0.01, abs=2)
        assert not rows or not rows[0].estimated_gpu_seconds


def _next_status(job: Job, choose: random.Random, nodes: tuple[str, ...], *, now: float) -> Any:
    places = job.status.assignment
    if places is None:
        return admitted(job, nodes=nodes[: choose.choice([2, 4])], at=now).status
    if places.lost:
        return transitions.resized(job, kept=[0], added=nodes[1:], epoch=EPOCH, now=now)
    match choose.randrange(4):
        case 0:
            return transitions.running(job, now=now)
        case 1:
            reason = Reason.POD_LOST
            return transitions.members_lost(job, indices={1}, reason=reason, message="", now=now)
        case 2:
            return transitions.requeued(job, reason=Reason.PREEMPTED, message="", now=now)
        case _:
            return transitions.suspended(job, now=now)


def test_of_a_job_whose_stays_are_not_known_a_part_counts_and_is_named() -> None:
    cluster = a_cluster(
        ended("before", created=-9 * HOUR, finished=-5 * HOUR, productive=1000),
        ended("across", created=-6 * HOUR, finished=-2 * HOUR, productive=1000),
        ended("within", created=-3 * HOUR, finished=-1 * HOUR, productive=1000),
    )
    (row,) = usage_rows(cluster.jobs, by=("queue",), since=NOW - 4 * HOUR, now=NOW)
    assert (row.jobs, row.gpu_seconds, row.estimated_gpu_seconds) == (2, 1500, 500)
