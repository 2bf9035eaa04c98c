"""Giving way: asked, saved, gone; and in time whatever the agents do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.actions import DeleteGenerations, JobPlan, Notify
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.jobstatus import CheckpointStatus
from drumline_contract import ExitCode, FaultClass, Notice, NoticeAnswer
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    ready_pods,
    report,
    running,
    with_status,
)
from tests.texts import missing
from tests.unit.lifecycle import planning

DEADLINE = T0 + 40
TEMPLATE = {"image": "any:1"}
CLAIM = {"claimName": "shared"}


def a_running_job(**spec: Any) -> Job:
    form = {"checkpoint": CLAIM} if "template" not in spec else {}
    return running(admitted(a_job(**form, **spec)))


def preempted(job: Job, *, at: float = T0 + 10) -> Job:
    status = transitions.disrupted(
        job,
        kind=DisruptionKind.PREEMPTION,
        by="team/urgent",
        by_uid="uid-urgent",
        message="team/urgent needs 4 GPUs of this job",
        deadline=DEADLINE,
        now=at,
    )
    return with_status(job, status)


planned = partial(planning.planned, now=T0 + 11)
decided = partial(planning.decided, now=T0 + 11)


def notice_of(job: Job) -> str:
    assert job.status.disruption is not None
    return job.status.disruption.id


def test_a_disruption_is_said_in_status_before_anybody_is_asked() -> None:
    job = preempted(a_running_job())
    disruption = job.status.disruption
    assert disruption is not None
    assert (disruption.by, disruption.by_uid) == ("team/urgent", "uid-urgent")
    assert (disruption.requested_at, disruption.deadline, disruption.indices) == (
        timestamp(T0 + 10),
        timestamp(DEADLINE),
        None,
    )
    assert is_true(job.status, ConditionType.DISRUPTED)
    assert is_true(job.status, ConditionType.RUNNING)
    assert (job.status.phase, job.status.reason) == (Phase.RUNNING, Reason.PREEMPTED)


def test_the_agents_are_asked_to_save_and_go_once() -> None:
    job = preempted(a_running_job())
    pods = ready_pods(job)
    notice = Notice(job_uid=job.uid, id=notice_of(job), deadline=DEADLINE, leave=True)
    asked = JobPlan(actions=(Notify(notice=notice),), requeue_at=DEADLINE)
    assert planned(job, observed(*pods)) == asked
    assert planned(job, observed(*pods, notice=NoticeAnswer(id="other", step=3))) == asked
    waits = JobPlan(requeue_at=DEADLINE)
    assert planned(job, observed(*pods, notified=notice.id)) == waits
    assert planned(job, observed(*pods, notice=NoticeAnswer(id=notice.id))) == waits


def test_when_it_left_for_others_is_kept_the_latest_times_alone() -> None:
    """Not when it moves or its queue is stopped: nobody was preferred to it."""
    earlier = [timestamp(T0 - 100 + second) for second in range(16)]
    job = preempted(a_running_job())
    job = with_status(job, job.status.model_copy(update={"preempted_at": earlier}))
    left = transitions.preempted(job, saved=True, now=T0 + 20)
    assert left.preempted_at == [*earlier[1:], timestamp(T0 + 20)]
    moves = with_status(
        job, transitions.nominated_for_move(job.status, pool="h100", nodes=("x", "y"))
    )
    assert transitions.preempted(moves, saved=True, now=T0 + 20).preempted_at == earlier
    assert job.status.disruption is not None
    stopped = job.status.disruption.model_copy(update={"kind": DisruptionKind.QUEUE_STOPPED})
    job = with_status(job, job.status.model_copy(update={"disruption": stopped}))
    assert transitions.preempted(job, saved=True, now=T0 + 20).preempted_at == earlier


def test_whose_queue_is_stopped_saves_and_waits_in_its_place() -> None:
    before = a_running_job()
    status = transitions.disrupted(
        before,
        kind=DisruptionKind.QUEUE_STOPPED,
        by="queue research",
        message="queue research is drained",
        deadline=DEADLINE,
        now=T0 + 10,
    )
    job = with_status(before, status)
    assert (status.phase, status.reason) == (Phase.RUNNING, Reason.QUEUE_STOPPED)
    pods = ready_pods(job)
    notice = Notice(job_uid=job.uid, id=notice_of(job), deadline=DEADLINE, leave=True)
    assert planned(job, observed(*pods)).actions == (Notify(notice=notice),)
    answer = NoticeAnswer(id=notice_of(job), step=42, digest="abc")
    left = decided(job, observed(*pods, notice=answer))
    assert (left.phase, left.reason) == (Phase.PENDING, Reason.QUEUE_STOPPED)
    assert not missing(left.message, "queue research", "drained", "step 42")
    assert (left.assignment, left.queued_at) == (None, job.status.queued_at)
    assert is_queued(with_status(job, left))


def test_saved_it_gives_everything_back_and_keeps_its_place_in_the_queue() -> None:
    job = preempted(a_running_job())
    pods = ready_pods(job)
    answer = NoticeAnswer(id=notice_of(job), step=42, digest="abc")
    status = decided(job, observed(*pods, notice=answer))
    assert (status.assignment, status.disruption) == (None, None)
    assert (status.phase, status.reason) == (Phase.PENDING, Reason.PREEMPTED)
    assert not missing(status.message, "team/urgent", "step 42")
    assert status.checkpoint == CheckpointStatus(step=42, digest="abc")
    assert status.queued_at == job.status.queued_at
    assert (status.restarts, status.budgets) == (0, None)
    assert not is_true(status, ConditionType.DISRUPTED)
    last = status.last_incident
    assert last is not None
    assert (last.fault_class, last.steps_lost) == (FaultClass.PREEMPTION, 0)
    released = with_status(job, status)
    assert is_queued(released)
    assert planned(released, observed(*pods)).actions == (DeleteGenerations(generations=(1,)),)


def test_a_template_is_asked_to_save_where_its_program_acknowledges_saves() -> None:
    job = preempted(a_running_job(template={**TEMPLATE, "command": ["run"], "launch": "PerGpu"}))
    pods = ready_pods(job)
    notice = Notice(job_uid=job.uid, id=notice_of(job), deadline=DEADLINE, leave=True)
    asked = planned(job, observed(*pods, acknowledges_saves=True))
    assert asked == JobPlan(actions=(Notify(notice=notice),), requeue_at=DEADLINE)
    answer = NoticeAnswer(id=notice.id, step=42)
    status = decided(job, observed(*pods, acknowledges_saves=True, notice=answer))
    assert status.checkpoint == CheckpointStatus(step=42, digest="")
    assert not missing(status.message, "team/urgent", "step 42")
    [saved] = [each for each in status.conditions if each.type == ConditionType.CHECKPOINTED]
    assert saved.reason == Reason.CHECKPOINT_REPORTED
    assert decided(job, observed(*pods)).reason == Reason.PREEMPTED  # another program: at once


def test_last_words_count_as_an_answer() -> None:
    job = preempted(a_running_job())
    words = report(step=42, checkpoint_step=42, checkpoint_digest="abc")
    left = ended(exit_code=ExitCode.PREEMPTED, message=words)
    first = observed(a_pod(job, 0, end=left), ready_pods(job)[1], notified=notice_of(job))
    assert planned(job, first) == JobPlan(requeue_at=DEADLINE)
    both = observed(a_pod(job, 0, end=left), a_pod(job, 1, end=left))
    status = decided(job, both)
    assert status.checkpoint == CheckpointStatus(step=42, digest="abc")
    assert status.reason == Reason.PREEMPTED


def test_members_that_left_without_a_checkpoint_are_not_waited_for() -> None:
    job = preempted(a_running_job())
    left = ended(exit_code=ExitCode.PREEMPTED, message="")
    status = decided(job, observed(a_pod(job, 0, end=left), a_pod(job, 1, end=left)))
    assert (status.assignment, status.reason) == (None, Reason.PREEMPTED)


def test_at_the_deadline_the_last_verified_checkpoint_counts() -> None:
    job = a_running_job()
    known = {"checkpoint": CheckpointStatus(step=30, digest="d"), "step": 41}
    job = preempted(with_status(job, job.status.model_copy(update=known)))
    seen = observed(*ready_pods(job), notified=notice_of(job))
    assert planned(job, seen, now=DEADLINE - 1) == JobPlan(requeue_at=DEADLINE)
    status = decided(job, seen, now=DEADLINE)
    assert (status.assignment, status.checkpoint) == (None, known["checkpoint"])
    assert not missing(status.message or "", "step 30")
    assert status.last_incident is not None
    assert status.last_incident.steps_lost == 11


@pytest.mark.parametrize(
    "spoiled",
    ["error", "lost member", "failed member", "no durable storage", "not running", "template"],
)
def test_where_nothing_can_be_saved_nothing_is_waited_for(spoiled: str) -> None:
    job = a_running_job()
    if spoiled == "no durable storage":
        job = running(admitted(a_job()))
    if spoiled == "not running":
        job = admitted(a_job(checkpoint=CLAIM))
    if spoiled == "template":
        job = a_running_job(template=TEMPLATE)
    job = preempted(job)
    pods = list(ready_pods(job))
    if spoiled == "lost member":
        pods[1] = replace(pods[1], terminating=True)
    if spoiled == "failed member":
        pods[1] = replace(pods[1], end=ended(exit_code=1))
    seen = observed(*pods)
    if spoiled == "error":
        answer = NoticeAnswer(id=notice_of(job), error="disk full")
        seen = observed(*pods, notice=answer)
    status = decided(job, seen)
    assert (status.assignment, status.reason, status.restarts) == (None, Reason.PREEMPTED, 0)


def test_a_job_that_ends_meanwhile_has_succeeded() -> None:
    job = preempted(a_running_job())
    done = ended(message=report(step=100))
    status = decided(job, observed(a_pod(job, 0, end=done), a_pod(job, 1, end=done)))
    assert (status.phase, status.disruption) == (Phase.SUCCEEDED, None)


def test_a_notice_of_a_past_disruption_is_withdrawn_once() -> None:
    job = preempted(a_running_job())
    name = notice_of(job)
    job = with_status(
        job, transitions.disruption_withdrawn(job, message="team/urgent is gone", now=T0 + 12)
    )
    assert not is_true(job.status, ConditionType.DISRUPTED)
    pods = ready_pods(job)
    back = Notice(job_uid=job.uid, id=name, deadline=0.0, leave=False, withdraw=True)
    asked = (Notify(notice=back),)
    out = NoticeAnswer(id=name)
    assert planned(job, observed(*pods, notice=out, notified=name)).actions == asked
    assert planned(job, observed(*pods, notified=name)).actions == asked
    assert planned(job, observed(*pods, notice=out)).actions == asked  # after a restart
    assert planned(job, observed(*pods, notice=out, withdrawn=name)).actions == ()
    assert planned(job, observed(*pods)).actions == ()
    for answered in (replace(out, step=5), replace(out, error="withdrawn")):
        assert planned(job, observed(*pods, notice=answered, notified=name)).actions == ()


def asked_for_its_surplus(job: Job) -> Job:
    status = transitions.disrupted(
        job,
        kind=DisruptionKind.PREEMPTION,
        by="team/urgent",
        by_uid="uid-urgent",
        message="team/urgent needs 2 GPUs of this job",
        deadline=DEADLINE,
        indices=[1],
        now=T0 + 10,
    )
    return with_status(job, status)


def test_an_elastic_job_saves_gives_its_surplus_up_and_goes_on() -> None:
    job = asked_for_its_surplus(a_running_job(minNodes=1))
    seen = observed(*ready_pods(job))
    notice = Notice(job_uid=job.uid, id=notice_of(job), deadline=DEADLINE, leave=False)
    assert planned(job, seen) == JobPlan(actions=(Notify(notice=notice),), requeue_at=DEADLINE)
    saved = replace(seen, notice=NoticeAnswer(id=notice.id, step=42, digest="abc"))
    status = decided(job, saved)
    assert status.assignment is not None
    assert status.assignment.node_names() == ("node-a",)
    assert (status.generation, status.disruption, status.reason) == (2, None, Reason.SHRUNK)
    assert status.checkpoint == CheckpointStatus(step=42, digest="abc")
    assert (status.restarts, status.budgets) == (0, None)


def test_surplus_that_cannot_be_saved_in_time_goes_all_the_same() -> None:
    job = asked_for_its_surplus(a_running_job(minNodes=1))
    status = decided(job, observed(*ready_pods(job)), now=DEADLINE)
    assert status.assignment is not None
    assert status.assignment.node_names() == ("node-a",)


def test_a_member_that_fails_first_is_lost_and_no_member_is_given_up() -> None:
    job = asked_for_its_surplus(a_running_job(minNodes=1))
    first, second = ready_pods(job)
    status = decided(job, observed(replace(first, end=ended(exit_code=137)), second))
    assert status.disruption is None
    assert status.reason != Reason.SHRUNK


def test_a_job_that_moves_waits_for_its_new_places_once_it_has_saved() -> None:
    job = preempted(a_running_job())
    job = with_status(
        job, transitions.nominated_for_move(job.status, pool="a100", nodes=("x", "y"))
    )
    answer = NoticeAnswer(id=notice_of(job), step=42, digest="abc")
    status = decided(job, observed(*ready_pods(job), notice=answer))
    assert status.assignment is None
    assert status.nominated is not None
    assert (status.nominated.gpu_pool, status.nominated.node_names()) == ("a100", ("x", "y"))
    assert not missing(status.message, "team/urgent", "step 42")


def test_a_job_that_need_not_move_gives_its_new_places_back() -> None:
    job = preempted(a_running_job())
    job = with_status(
        job, transitions.nominated_for_move(job.status, pool="a100", nodes=("x", "y"))
    )
    status = transitions.disruption_withdrawn(job, message="nobody needs it any more", now=T0 + 12)
    assert (status.nominated, status.disruption) == (None, None)


def test_places_that_were_kept_for_a_repair_are_given_back_with_it() -> None:
    broken = transitions.members_lost(
        a_running_job(), indices=[1], reason=Reason.NODE_LOST, message="", now=T0
    )
    job = with_status(a_running_job(), broken)
    kept = transitions.nominated(
        job, pool="h100", nodes=("node-a", "x"), reason="WaitingForVictims", message="", now=T0
    )
    repaired = transitions.members_replaced(
        with_status(job, kept), nodes=("node-a", "x"), replaced=[1], epoch=EPOCH, now=T0 + 1
    )
    assert (kept.nominated is None, repaired.nominated) == (False, None)
