"""A job that runs is told what was deleted or relabelled under it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import Remark, RemarkKind
from tests.builders import T0, a_job, a_pod, admitted, observed, running, with_status
from tests.unit.lifecycle.planning import planned

GONE = (Reason.QUEUE_DELETED, "TrainingQueue research was deleted")


def succeeds(job: Job) -> TrainingJobStatus:
    return transitions.succeeded(job, progress=None, now=T0 + 100)


def fails(job: Job) -> TrainingJobStatus:
    return transitions.failed(job, reason=Reason.START_FAILED, message="no", now=T0 + 100)


def test_a_job_whose_queue_was_deleted_is_told_until_the_queue_is_back() -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, index, ready=True) for index in range(2)]
    status = planned(job, observed(*pods, orphaned=GONE)).status
    assert status is not None
    assert is_true(status, ConditionType.ORPHANED)
    assert (status.phase, status.reason, status.message) == (Phase.RUNNING, *GONE)
    informed = with_status(job, status)
    assert planned(informed, observed(*pods, orphaned=GONE)).status in (None, status)
    back = planned(informed, observed(*pods)).status
    assert back is not None
    assert not is_true(back, ConditionType.ORPHANED)
    assert (back.reason, back.message) == (Reason.TRAINING, "")


def test_a_gang_whose_domain_is_broken_is_told() -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, index, ready=True) for index in range(2)]
    status = planned(job, observed(*pods, broken_domain="the required rack is broken")).status
    assert status is not None
    assert is_true(status, ConditionType.DOMAIN_BROKEN)
    assert "required rack" in str(status.conditions)
    assert (status.reason, status.message) == (Reason.LABELS_MOVED, "the required rack is broken")


def test_a_remark_of_the_agents_is_shown_before_a_deleted_queue() -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, index, ready=True) for index in range(2)]
    status = planned(job, observed(*pods, orphaned=GONE)).status
    assert status is not None
    remark = Remark(kind=RemarkKind.LOSS_NOT_FINITE, sentence="the loss is nan")
    seen = observed(*pods, orphaned=GONE, remark=remark, waiting_for="", refresh_due=True)
    later = planned(with_status(job, status), seen).status
    assert later is not None
    assert later.reason == Reason.LOSS_NOT_FINITE
    again = planned(with_status(job, later), seen).status
    assert again in (None, later)


@pytest.mark.parametrize("ends", [succeeds, fails])
def test_nothing_is_said_of_the_surroundings_of_a_job_that_has_ended(
    ends: Callable[[Job], TrainingJobStatus],
) -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, index, ready=True) for index in range(2)]
    broken = "the required rack is broken"
    status = planned(job, observed(*pods, orphaned=GONE, broken_domain=broken)).status
    assert status is not None
    ended = ends(with_status(job, status))
    for kind in (ConditionType.ORPHANED, ConditionType.DOMAIN_BROKEN):
        assert is_true(status, kind)
        assert not is_true(ended, kind)


def test_a_waiting_job_that_fails_is_not_expected_to_start() -> None:
    job = a_job()
    expected = transitions.with_expected_start(job.status, start=T0 + 100, by=T0 + 500)
    failed = fails(with_status(job, expected))
    assert (failed.expected_start, failed.expected_start_by) == (None, None)
