"""Why a pod, Job or JobSet waits, and which queue it is charged to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.overview.objects import decoded
from drumline.overview.rows import WorkloadCard
from drumline.overview.why_workload import workload_card
from drumline.overview.workload_objects import WorkloadObject
from tests.unit.overview.objects import (
    NOW,
    a_cluster,
    a_job,
    a_pod,
    a_queue,
    a_workload,
    at,
    running,
)

GATED = {"schedulingGates": [{"name": "drumline.dev/queue"}]}
PENDING = {"phase": "Pending"}
MARKED = {"annotations": {"drumline.dev/admitted": "{}"}}
ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}


def waiting(workload: str, position: int) -> dict[str, Any]:
    return {
        "workload": workload,
        "gpus": 4,
        "position": position,
        "queuedAt": at(-60),
        "expectedStart": at(600),
        "expectedStartBy": at(900),
        "reason": "QuotaExhausted",
        "message": "needs 4 GPUs",
    }


def card_of_pod(*objects: dict[str, Any], name: str) -> WorkloadCard:
    cluster = a_cluster(*objects)
    pod = next(pod for pod in cluster.pods if pod.metadata.name == name)
    return workload_card(cluster, pod, plural="pods")


def card_of(kind: dict[str, Any], *objects: dict[str, Any], plural: str = "jobs") -> WorkloadCard:
    (asked,) = decoded([json.dumps(kind).encode()], WorkloadObject).objects
    return workload_card(a_cluster(*objects), asked, plural=plural)


def test_a_pod_at_the_gate_has_its_place_what_is_before_it_and_who_holds_the_gpus() -> None:
    status = {
        "pendingWorkloads": 2,
        "waitingWorkloads": [waiting("team/jobs/train", 1), waiting("team/pods/book", 3)],
    }
    card = card_of_pod(
        a_queue("research", status=status),
        a_job("llama", status=running(expectedEnd=at(30))),
        a_job("big"),
        a_pod("chat", gpus=2),
        a_pod("book", gpus=4, spec=GATED, status=PENDING),
        name="book",
    )
    assert (card.state, card.queue, card.reason, card.gpus) == (
        "Waiting",
        "research",
        "QuotaExhausted",
        4,
    )
    assert (card.position, card.waiting, card.gpus_ahead) == (3, 3, 12)
    assert [each.name for each in card.ahead] == ["team/jobs/train", "team/big"]
    assert (card.queued_at, card.expected_start, card.expected_start_by) == (
        NOW - 60,
        NOW + 600,
        NOW + 900,
    )
    assert [(row.job, row.gpus) for row in card.holders] == [
        ("team/llama", 8),
        ("team/pods/chat", 2),
    ]
    assert card.advice


def test_a_pod_of_a_group_stands_where_its_group_stands() -> None:
    labels = {"labels": {"drumline.dev/pod-group": "crew"}}
    status = {"pendingWorkloads": 1, "waitingWorkloads": [waiting("team/pods/crew", 1)]}
    pod = a_pod("crew-0", metadata=labels, spec=GATED, status=PENDING)
    assert card_of_pod(a_queue("research", status=status), pod, name="crew-0").position == 1


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        ({"spec": GATED, "status": PENDING}, "Waiting"),
        ({"spec": GATED, "status": PENDING, "metadata": MARKED}, "Admitted"),
        ({"status": PENDING, "metadata": MARKED}, "Admitted"),
        ({"status": PENDING}, "NotCharged"),
        ({}, "Charged"),
        ({"status": {"phase": "Failed"}}, "Ended"),
        ({"queue": "none"}, "NotCharged"),
    ],
)
def test_what_becomes_of_a_pod(pod: dict[str, Any], state: str) -> None:
    card = card_of_pod(a_queue("research"), a_pod("a", gpus=4, **pod), name="a")
    assert (card.state, card.position) == (state, None)
    assert card.message
    assert card.gpus == (0 if state == "Ended" else 4)


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({}, "Waiting"),
        ({"metadata": MARKED | {"labels": {}}}, "NotCharged"),
        ({"suspend": False, "metadata": MARKED}, "Admitted"),
        ({"suspend": False}, "Charged"),
        ({"suspend": False, "metadata": MARKED, "status": ENDED}, "Ended"),
    ],
)
def test_what_becomes_of_a_job(job: dict[str, Any], state: str) -> None:
    metadata = {"labels": {"drumline.dev/queue": "research"}, **job.pop("metadata", {})}
    body = a_workload("Job", "train", metadata=metadata, **job)
    assert card_of(body, a_queue("research")).state == state


def test_a_job_that_runs_holds_what_its_pods_hold() -> None:
    owner = {"kind": "Job", "name": "train", "uid": "j", "controller": True}
    pods = [
        a_pod(f"train-{number}", gpus=2, metadata={"ownerReferences": [owner]}) for number in (0, 1)
    ]
    body = a_workload(
        "Job",
        "train",
        suspend=False,
        metadata=MARKED | {"labels": {"drumline.dev/queue": "research"}},
    )
    card = card_of(body, a_queue("research"), *pods)
    assert (card.gpus, card.pods, card.since) == (4, 2, NOW - 300)


def test_one_far_behind_says_that_its_place_is_not_known() -> None:
    status = {"pendingWorkloads": 40, "waitingWorkloads": [waiting("team/jobs/first", 1)]}
    card = card_of(
        a_workload("JobSet", "far"), a_queue("research", status=status), plural="jobsets"
    )
    assert (card.state, card.position, card.waiting) == ("Waiting", None, 40)
    assert "lists only the first" in card.message
