"""observedGeneration, Ready and Stalled: what kstatus makes of every transition of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.readiness import as_written
from drumline.lifecycle.model.verdict import Refusal
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import DisruptionKind, Reason
from drumline_api.jobstatus import TrainingJobStatus
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    admitted,
    observed,
    ready_pods,
    running,
    with_spec,
    with_status,
)
from tests.kstatus import kstatus

LATER = T0 + 100
NEW = a_job()
STARTING = admitted(NEW)
TRAINING = running(STARTING)
SUSPENDED = with_status(TRAINING, transitions.suspended(TRAINING, now=LATER))
REFUSAL = Refusal(reason=Reason.CONFIG_REFUSED, message="batch: no")
INVALID = with_status(NEW, transitions.invalid_config(NEW, REFUSAL, now=LATER))

TRANSITIONS: dict[str, tuple[Job, TrainingJobStatus, str]] = {
    "waits": (
        NEW,
        transitions.waiting(NEW, reason="NoQuota", message="m", now=LATER),
        "InProgress",
    ),
    "nominated": (
        NEW,
        transitions.nominated(
            NEW, pool="h100", nodes=["n1"], reason="WaitingForVictims", message="m", now=LATER
        ),
        "InProgress",
    ),
    "admitted": (NEW, STARTING.status, "InProgress"),
    "taken over": (STARTING, transitions.with_epoch(STARTING, epoch=9), "InProgress"),
    "runs": (STARTING, transitions.running(STARTING, now=LATER), "Current"),
    "taken over while it runs": (TRAINING, transitions.with_epoch(TRAINING, epoch=9), "Current"),
    "is to leave": (
        TRAINING,
        transitions.disrupted(
            TRAINING, kind=DisruptionKind.PREEMPTION, by="a/b", message="m", deadline=1, now=LATER
        ),
        "Current",
    ),
    "restarts": (
        TRAINING,
        transitions.restarted(
            TRAINING, indices=(0,), reason=Reason.POD_LOST, message="m", epoch=9, now=LATER
        ),
        "InProgress",
    ),
    "is requeued": (
        TRAINING,
        transitions.requeued(TRAINING, reason=Reason.POD_LOST, message="m", now=LATER),
        "InProgress",
    ),
    "is preempted": (
        TRAINING,
        transitions.preempted(TRAINING, saved=True, now=LATER),
        "InProgress",
    ),
    "is suspended": (TRAINING, SUSPENDED.status, "Current"),
    "is resumed": (SUSPENDED, transitions.resumed(SUSPENDED, now=LATER), "InProgress"),
    "is invalid": (NEW, INVALID.status, "Failed"),
    "is valid again": (INVALID, transitions.valid_config(INVALID, now=LATER), "InProgress"),
    "succeeds": (TRAINING, transitions.succeeded(TRAINING, progress=None, now=LATER), "Current"),
    "fails": (
        TRAINING,
        transitions.failed(TRAINING, reason=Reason.NO_PROGRESS, message="m", now=LATER),
        "Failed",
    ),
}


def document(job: Job, status: TrainingJobStatus) -> dict[str, object]:
    return {
        "metadata": {"generation": job.object_generation},
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


@pytest.mark.parametrize(("job", "decided", "expected"), TRANSITIONS.values(), ids=TRANSITIONS)
def test_kstatus_reads_every_transition_rightly(
    job: Job, decided: TrainingJobStatus, expected: str
) -> None:
    edited = replace(job, object_generation=7)
    written = as_written(edited, decided, now=LATER)
    assert written.observed_generation == 7
    assert kstatus(document(edited, written)) == expected
    again = replace(edited, object_generation=8)
    assert kstatus(document(again, written)) == "InProgress"


def test_a_transition_time_is_that_of_the_truth_not_of_the_reason() -> None:
    waits = transitions.waiting(NEW, reason="NoQuota", message="m", now=T0)
    first = with_status(NEW, as_written(NEW, waits, now=T0))
    moved = transitions.waiting(first, reason="InsufficientGpus", message="n", now=LATER)
    second = as_written(first, moved, now=LATER)
    times = [
        [entry.last_transition_time for entry in status.conditions or () if entry.type == "Ready"]
        for status in (first.status, second)
    ]
    assert times[0] == times[1] != []


def test_an_edit_that_changes_nothing_else_is_observed_once() -> None:
    written = as_written(TRAINING, TRAINING.status, now=T0)
    job = with_spec(with_status(TRAINING, written), ttlSecondsAfterFinished=60)
    edited = replace(job, object_generation=9)
    seen = observed(*ready_pods(edited), acknowledged_generation=1, evictable=0)
    planned = plan_job(edited, seen, now=LATER, epoch=EPOCH)
    assert planned == JobPlan(status=edited.status)
    noted = with_status(edited, as_written(edited, edited.status, now=LATER))
    assert plan_job(noted, seen, now=LATER, epoch=EPOCH).status is None


def test_a_new_job_costs_no_write_of_its_own() -> None:
    assert plan_job(replace(NEW, object_generation=3), observed(), now=T0, epoch=EPOCH) == JobPlan()
