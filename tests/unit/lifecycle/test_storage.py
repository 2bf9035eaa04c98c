"""A running gang of which its agents have something to say: it waits for its storage, say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.plan.deadlines import SENTENCE_SECONDS
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import Progress, Remark, RemarkKind
from tests.builders import EPOCH, T0, a_job, a_pod, admitted, observed, running, with_status

FULL = "rank 0: StorageError: checkpoint folder /checkpoints/a: No space left on device"


def summary(status: TrainingJobStatus | None) -> tuple[Any, ...]:
    assert status is not None
    return status.phase, status.reason, status.message


def seen(job: Job, waiting_for: str | None, **rest: Any) -> Observed:
    pods = [a_pod(job, index, ready=True, ip=f"10.0.0.{index}") for index in range(job.size)]
    return replace(observed(*pods, **rest), waiting_for=waiting_for)


def test_the_agents_sentence_is_in_status_and_goes_when_training_goes_on() -> None:
    job = running(admitted(a_job()))
    status = plan_job(job, seen(job, FULL), now=T0, epoch=EPOCH).status
    assert summary(status) == (Phase.RUNNING, Reason.STORAGE_UNAVAILABLE, FULL)
    waiting = with_status(job, status)
    for waiting_for in (FULL, None):
        assert plan_job(waiting, seen(job, waiting_for), now=T0, epoch=EPOCH).status is None
    status = plan_job(waiting, seen(job, ""), now=T0, epoch=EPOCH).status
    assert summary(status) == (Phase.RUNNING, Reason.TRAINING, "")


def test_a_sentence_that_changes_all_the_time_is_written_as_the_budget_allows() -> None:
    job = running(admitted(a_job()))
    planned = plan_job(job, seen(job, FULL, refresh_due=False), now=T0, epoch=EPOCH)
    assert (planned.status, planned.requeue_at) == (None, T0 + SENTENCE_SECONDS)


def test_a_remark_is_written_with_figures_that_are_due_more_often() -> None:
    """A diverged run goes on, and its figures are written every five seconds."""
    job = running(admitted(a_job()))
    seen_job = seen(job, "", refresh_due=False, progress=Progress(step=7))
    remark = Remark(kind=RemarkKind.LOSS_NOT_FINITE, sentence="the loss is nan since step 6")
    status = plan_job(job, replace(seen_job, remark=remark), now=T0, epoch=EPOCH).status
    assert status is not None
    assert (status.step, status.reason) == (7, Reason.LOSS_NOT_FINITE)


def test_a_summary_of_something_else_stays() -> None:
    job = running(admitted(a_job()))
    suspended = transitions.suspended(job, now=T0)
    assert transitions.with_agents_report(suspended, waiting_for=FULL) is suspended


@pytest.mark.parametrize("kind", RemarkKind)
def test_a_remark_is_in_status_unless_the_gang_waits_and_goes_when_it_is_taken_back(
    kind: RemarkKind,
) -> None:
    job = running(admitted(a_job()))
    remark = Remark(kind=kind, sentence="no line has matched")
    status = plan_job(job, replace(seen(job, ""), remark=remark), now=T0, epoch=EPOCH).status
    assert summary(status) == (Phase.RUNNING, Reason(kind.value), "no line has matched")
    remarked = with_status(job, status)
    waits = replace(seen(job, FULL), remark=remark)
    assert summary(plan_job(remarked, waits, now=T0, epoch=EPOCH).status)[2] == FULL
    assert plan_job(remarked, seen(job, None), now=T0, epoch=EPOCH).status is None
    status = plan_job(remarked, seen(job, ""), now=T0, epoch=EPOCH).status
    assert summary(status) == (Phase.RUNNING, Reason.TRAINING, "")
