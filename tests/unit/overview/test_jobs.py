"""Rows of jobs: the operator's order of a line, and texts that no terminal obeys."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.overview.jobs import job_row, job_rows, lines, positions
from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import JobRow
from drumline_cli.overview.tables import dated
from drumline_scheduler.model import Gang, order_key
from drumline_scheduler.resources import Resources
from tests.unit.overview.objects import NOW, a_cluster, a_job, a_priority_class, at, running


def rows_of(cluster: ClusterObjects) -> tuple[JobRow, ...]:
    places = positions(lines(cluster.jobs, cluster.priorities))
    return job_rows(cluster.jobs, now=NOW, places=places)


def waiting(name: str, *, since: float, reason: str = "QuotaExhausted", **spec: Any) -> Any:
    status = {"phase": "Pending", "reason": reason, "queuedAt": at(since)}
    return a_job(name, spec=spec, status=status)


@given(st.lists(st.tuples(st.sampled_from([0, 5, -5]), st.integers(-9, 0)), max_size=8))
def test_a_line_has_the_order_of_the_scheduler(jobs: list[tuple[int, int]]) -> None:
    classes = [a_priority_class(f"class{value}", value) for value in (0, 5, -5)]
    objects = [
        waiting(f"job-{number}", since=since, priorityClassName=f"class{priority}")
        for number, (priority, since) in enumerate(jobs)
    ]
    gangs = [
        Gang(
            key=f"team/job-{number}",
            uid=f"uid-job-{number}",
            queue="research",
            nodes=1,
            per_pod=Resources(pods=1),
            queued_at=NOW + since,
            priority=priority,
        )
        for number, (priority, since) in enumerate(jobs)
    ]
    random.Random(1).shuffle(objects)
    cluster = a_cluster(*classes, *objects)
    line = lines(cluster.jobs, cluster.priorities).get("research", ())
    assert [job.key for job in line] == [gang.key for gang in sorted(gangs, key=order_key)]


def test_a_class_of_its_own_comes_before_the_default_one() -> None:
    cluster = a_cluster(
        a_priority_class("usual", 10, default=True),
        a_priority_class("low", 1),
        waiting("low", since=-100, priorityClassName="low"),
        waiting("plain", since=-10),
    )
    assert positions(lines(cluster.jobs, cluster.priorities)) == {"team/plain": 1, "team/low": 2}


def test_who_cannot_start_or_need_not_is_in_no_line() -> None:
    cluster = a_cluster(
        waiting("wrong", since=-9, reason="ConfigRefused"),
        waiting("classless", since=-9, reason="PriorityClassNotFound"),
        waiting("foreign", since=-9, managedBy="kueue.x-k8s.io/multikueue"),
        waiting("resting", since=-9, suspend=True),
        a_job("new", status={}),
        a_job("runs", status=running()),
        a_job("ended", status={"phase": "Failed", "finishedAt": at(-5)}),
    )
    assert positions(lines(cluster.jobs, cluster.priorities)) == {"team/new": 1}


def test_holders_come_first_then_the_line_then_what_has_ended() -> None:
    cluster = a_cluster(
        a_job("old", status={"phase": "Succeeded", "finishedAt": at(-900)}),
        a_job("newer", status={"phase": "Failed", "finishedAt": at(-90)}),
        waiting("second", since=-10),
        waiting("first", since=-20),
        a_job("resting", spec={"suspend": True}, status={"phase": "Suspended"}),
        a_job("runs", status=running()),
    )
    names = [row.name for row in rows_of(cluster)]
    assert names == ["runs", "first", "second", "resting", "newer", "old"]


def test_a_row_has_what_the_status_says() -> None:
    account = {"until": at(-10), "productive": 100}
    status = running(step=4, totalSteps=9, loss="2.5", restarts=2, gpuSeconds=account)
    (row,) = rows_of(a_cluster(a_job("llama", spec={"user": "ada"}, status=status)))
    assert (row.phase, row.reason, row.pool, row.user) == ("Running", "Training", "gpus", "ada")
    assert (row.step, row.total_steps, row.loss, row.restarts) == (4, 9, "2.5", 2)
    assert (row.pods, row.gpus, row.gpu_seconds) == (1, 8, 100 + 8 * 10)
    assert (row.created_at, row.admitted_at) == (NOW - 600, NOW - 300)


def test_an_expectation_of_who_no_longer_waits_is_not_shown() -> None:
    status = running(expectedStart=at(50), expectedStartBy=at(90), expectedEnd=at(70))
    (row,) = rows_of(a_cluster(a_job("llama", status=status)))
    assert (row.expected_start, row.expected_start_by, row.expected_end) == (None, None, NOW + 70)


def test_a_job_the_operator_has_not_looked_at_says_so() -> None:
    (row,) = rows_of(a_cluster(a_job("new", status={})))
    assert (row.phase, row.position) == ("NotSeen", 1)


def test_no_text_of_a_tenant_reaches_a_terminal_as_it_is() -> None:
    hostile = "\x1b]0;x\x07\u202egpj.\n\x9b2J"
    status = {"phase": hostile, "reason": hostile, "message": hostile, "loss": hostile}
    spec = {"user": hostile, "queue": hostile}
    (row,) = rows_of(a_cluster(a_job("llama", spec=spec, status={**status, "finishedAt": at(-1)})))
    texts = (row.phase, row.reason, row.message, row.loss, row.user, row.queue)
    assert all(text and text.isprintable() for text in texts)


def test_a_preempted_job_waits_since_it_gave_back_its_gpus() -> None:
    stay = {"since": at(-900), "until": at(-40), "gpus": 8}
    account = {"until": at(-40), "productive": 6880, "stays": [stay]}
    status = {"phase": "Pending", "reason": "QuotaExhausted", "queuedAt": at(-1000)}
    preempted = a_job("preempted", status={**status, "gpuSeconds": account})
    cluster = a_cluster(preempted, a_job("fresh", status=status))
    places = positions(lines(cluster.jobs, ()))
    rows = {row.name: row for row in job_rows(cluster.jobs, now=NOW, places=places)}
    assert rows["preempted"].waits_since == NOW - 40
    assert rows["preempted"].queued_at == NOW - 1000
    assert rows["fresh"].waits_since == NOW - 1000


@pytest.mark.parametrize(("reason", "start"), [("QuotaExhausted", NOW + 60), ("QueueHeld", None)])
def test_a_job_that_cannot_start_has_no_expected_start(reason: str, start: float | None) -> None:
    status = {"phase": "Pending", "reason": reason, "expectedStart": at(60)}
    (job,) = a_cluster(a_job("waits", status=status)).jobs
    assert job_row(job, now=NOW, position=1).expected_start == start


def test_a_message_has_its_age() -> None:
    status = {"phase": "Pending", "reason": "QuotaExhausted", "message": "0 of 8 GPUs free"}
    raw = a_job("waits", status=status)
    raw["metadata"]["managedFields"] = [
        {"manager": "kubectl", "time": at(-5)},
        {"manager": "drumline", "subresource": "status", "time": at(-45)},
    ]
    (job,) = a_cluster(raw).jobs
    row = job_row(job, now=NOW, position=1)
    assert row.message_at == NOW - 45
    assert dated(row, now=NOW) == "0 of 8 GPUs free (45.0 s ago)"
