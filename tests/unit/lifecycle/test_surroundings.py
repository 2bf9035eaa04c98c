"""A job that runs is told what was deleted or relabelled under it."""

from __future__ import annotations

from drumline.lifecycle.model.conditions import is_true
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_contract import Remark, RemarkKind
from tests.builders import a_job, a_pod, admitted, observed, running, with_status
from tests.unit.lifecycle.planning import planned

GONE = (Reason.QUEUE_DELETED, "TrainingQueue research was deleted")


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
