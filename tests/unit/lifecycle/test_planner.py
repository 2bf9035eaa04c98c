"""plan(): given a job and its pods, what is written and done next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.model.verdict import Refusal, Schedulable, Unjudged
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.actions import (
    DeleteGenerations,
    DeleteJob,
    DeletePods,
    JobPlan,
)
from drumline.lifecycle.plan.planner import plan_job
from drumline.lifecycle.transitions.disruption import nominated
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_contract import ExitCode, FaultClass, Incident, Progress
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
    with_spec,
    with_status,
)
from tests.texts import missing
from tests.unit.lifecycle.planning import decided, planned

TEMPLATE = {"image": "any:1", "command": ["true"]}


def test_a_new_job_waits_for_the_scheduler() -> None:
    job = a_job()
    assert is_queued(job)
    assert planned(job) == JobPlan()


def test_a_job_managed_by_another_controller_is_left_alone() -> None:
    job = a_job(managedBy="kueue.x-k8s.io/multikueue")
    assert not is_queued(job)
    assert planned(admitted(job)) == JobPlan()


def test_success_takes_step_and_loss_from_the_first_pods_last_words() -> None:
    job = running(admitted(a_job()))
    words = report(step=100, loss=2.345, checkpoint_step=100, checkpoint_digest="abc")
    pods = [a_pod(job, i, end=ended(message=words)) for i in (0, 1)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.step, status.loss) == (Phase.SUCCEEDED, 100, "2.3450")
    assert status.checkpoint is not None
    assert status.checkpoint.digest == "abc"
    assert is_true(status, ConditionType.SUCCEEDED)


def test_a_single_member_that_succeeds_is_not_the_end() -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, 0, end=ended()), a_pod(job, 1, ip="10.0.0.2", ready=True)]
    assert planned(job, observed(*pods)).status is None


def test_suspending_gives_everything_back_and_resuming_queues_behind() -> None:
    job = with_spec(running(admitted(a_job())), suspend=True)
    pods = ready_pods(job)
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.assignment) == (Phase.SUSPENDED, None)
    job = with_status(job, status)
    assert not is_queued(job)
    assert planned(job, observed(*pods)).actions == (DeleteGenerations(generations=(1,)),)
    job = with_spec(job, suspend=False)
    assert not is_queued(job)
    job = with_status(job, planned(job, now=T0 + 500).status)
    assert is_queued(job)
    assert job.status.queued_at == "2023-11-14T22:21:40Z"


def test_the_active_deadline_ends_the_job_and_its_pods() -> None:
    job = running(admitted(a_job(activeDeadlineSeconds=100)))
    pods = ready_pods(job)
    assert planned(job, observed(*pods), now=T0 + 99).requeue_at == T0 + 100
    status = planned(job, observed(*pods), now=T0 + 100).status
    assert status is not None
    assert status.reason == Reason.ACTIVE_DEADLINE_EXCEEDED
    assert planned(with_status(job, status), observed(*pods)).actions == (
        DeleteGenerations(generations=(1,)),
    )


def test_a_finished_job_keeps_its_ended_pods_until_the_ttl() -> None:
    job = running(admitted(a_job(ttlSecondsAfterFinished=60)))
    pods = [a_pod(job, i, end=ended()) for i in (0, 1)]
    job = with_status(job, planned(job, observed(*pods), now=T0).status)
    assert planned(job, observed(*pods), now=T0 + 1) == JobPlan(requeue_at=T0 + 60)
    assert planned(job, observed(*pods), now=T0 + 60).actions == (DeleteJob(),)


def test_of_a_failed_job_only_the_pods_go_that_still_run() -> None:
    job = running(admitted(a_job(nodes=3), nodes=("node-a", "node-b", "node-c")))
    first, second, third = ready_pods(job)
    refused = replace(first, ready=False, end=ended(exit_code=ExitCode.CONFIG))
    job = with_status(job, planned(job, observed(refused, second, third)).status)
    assert job.status.phase is Phase.FAILED
    going = replace(third, terminating=True)
    result = planned(job, observed(refused, second, going))
    assert result.actions == (DeletePods(pods=(second,)),)
    result = planned(job, observed(second, going))
    assert result.actions == (DeleteGenerations(generations=(1,)),)


def test_of_a_finished_job_a_pod_goes_whose_sidecar_holds_its_gpus() -> None:
    job = running(admitted(a_job(template={"image": "any:1"})))
    pods = [a_pod(job, 0, end=ended()), a_pod(job, 1, end=ended(), lingers=True)]
    job = with_status(job, planned(job, observed(*pods)).status)
    assert job.status.phase is Phase.SUCCEEDED
    assert planned(job, observed(*pods)).actions == (DeletePods(pods=(pods[1],)),)


def test_of_a_finished_job_a_pod_stays_whose_native_sidecar_is_about_to_end() -> None:
    """Its kubelet ends the sidecar; deleted, the pod would take its logs with it."""
    job = running(admitted(a_job(template={"image": "any:1"})))
    pods = [a_pod(job, i, end=ended(), lingers=True, closing=True) for i in (0, 1)]
    job = with_status(job, planned(job, observed(*pods)).status)
    assert job.status.phase is Phase.SUCCEEDED
    assert planned(job, observed(*pods)).actions == ()


def test_a_configuration_the_trainer_refuses_is_never_scheduled() -> None:
    job = a_job(trainer={"model": "tiny", "overrides": {"optimizer": {"learning_rat": 1}}})
    assert not is_queued(job)
    status = planned(job).status
    assert status is not None
    assert is_true(status, ConditionType.INVALID_CONFIG)
    assert not missing(status.message or "", "'learning_rate'")
    assert planned(with_status(job, status)) == JobPlan()
    mended = with_spec(with_status(job, status), trainer=a_job().spec.trainer)
    assert planned(mended).status is not None
    assert is_queued(mended)


def test_a_new_leader_marks_an_active_job_before_it_touches_it() -> None:
    job = running(admitted(a_job()))
    result = plan_job(job, observed(*ready_pods(job)), now=T0, epoch=EPOCH + 1)
    assert result.actions == ()
    assert result.status == job.status.model_copy(update={"epoch": EPOCH + 1})


def test_progress_is_written_when_it_is_given_and_new() -> None:
    job = running(admitted(a_job()))
    figures = Progress(step=10, total_steps=100, loss=3.0, checkpoint_step=5, checkpoint_digest="d")
    seen = observed(*ready_pods(job), progress=figures)
    status = planned(job, seen).status
    assert status is not None
    assert (status.step, status.loss) == (10, "3.0000")
    assert planned(with_status(job, status), seen).status is None


def test_a_reported_checkpoint_never_goes_back() -> None:
    job = running(admitted(a_job()))
    for step in (50, 20):
        figures = Progress(step=60, total_steps=100, checkpoint_step=step, checkpoint_digest="d")
        status = planned(job, observed(*ready_pods(job), progress=figures)).status
        job = with_status(job, status) if status else job
    assert job.status.checkpoint is not None
    assert job.status.checkpoint.step == 50


def test_leftovers_of_a_released_job_are_deleted() -> None:
    job = a_job()
    orphan = a_pod(job, 0, generation=1, ready=True)
    assert planned(job, observed(orphan)).actions == (DeleteGenerations(generations=(1,)),)


@pytest.mark.parametrize("suspend", [False, True])
def test_a_job_that_is_over_or_paused_recovers_no_longer(suspend: bool) -> None:
    job = running(admitted(a_job(recovery={"maxRestarts": 1})))
    broken = [a_pod(job, i, end=ended(exit_code=1)) for i in (0, 1)]
    job = with_status(job, planned(job, observed(*broken)).status)
    assert is_true(job.status, ConditionType.RECOVERING)
    job = with_spec(job, suspend=suspend)
    again = [a_pod(job, i, end=ended(exit_code=1)) for i in (0, 1)]
    status = planned(job, observed(*again)).status
    assert status is not None
    assert status.phase is (Phase.SUSPENDED if suspend else Phase.FAILED)
    assert not is_true(status, ConditionType.RECOVERING)


def test_a_deleted_job_that_somebody_s_finalizer_holds_gives_its_nodes_back() -> None:
    job = replace(running(admitted(a_job())), deleting=True)
    assert planned(job, observed(*ready_pods(job))).actions == (
        DeleteGenerations(generations=(1,)),
    )
    ends = [replace(pod, terminating=True) for pod in ready_pods(job)]
    assert planned(job, observed(*ends)) == JobPlan()
    assert planned(job, observed(expected_pods=frozenset({"llama-0-g1"}))) == JobPlan()
    status = planned(job, observed()).status
    assert status is not None
    assert (status.assignment, status.phase) == (None, Phase.SUSPENDED)
    assert planned(replace(job, status=status), observed()) == JobPlan()
    promised = nominated(a_job(), pool="h100", nodes=("n0",), reason="r", message="", now=T0)
    waits = replace(job, status=promised)
    assert decided(waits, observed()).nominated is None
    over = replace(job, status=job.status.model_copy(update={"finished_at": timestamp(T0)}))
    assert planned(over, observed()) == JobPlan()


def test_restarts_in_place_are_counted_while_training_goes_on() -> None:
    job = running(admitted(a_job()))
    incident = Incident(
        generation=1,
        attempt=1,
        fault_class=FaultClass.HANG,
        cause="rank 1 stood still",
        fault_at=T0,
        detected_at=T0 + 2,
        first_step_at=T0 + 4,
    )
    seen = observed(*ready_pods(job), incidents=(incident,))
    status = planned(job, seen).status
    assert status is not None
    assert (status.phase, status.restarts) == (Phase.RUNNING, 1)
    assert status.last_incident is not None
    assert status.last_incident.cause == "rank 1 stood still"
    assert planned(with_status(job, status), seen) == JobPlan()


UNREADABLE = Refusal(reason=Reason.UNREADABLE, message="spec.user: cannot be read")


def unreadable(job: Job) -> Job:
    return replace(job, verdict=UNREADABLE)


def test_an_unreadable_job_says_which_field_it_is_and_keeps_its_pods() -> None:
    job = unreadable(a_job())
    status = planned(job).status
    assert status is not None
    assert (status.phase, status.reason, status.message) == (
        Phase.PENDING,
        "InvalidConfig",
        "spec.user: cannot be read",
    )
    shown = replace(job, status=status)
    assert planned(shown, observed(a_pod(job, 0))) == JobPlan()
    mended = planned(replace(shown, verdict=Schedulable())).status
    assert mended is not None
    assert not is_true(mended, ConditionType.INVALID_CONFIG)


def test_a_job_that_became_unreadable_while_it_runs_goes_on_as_it_is() -> None:
    job = unreadable(running(admitted(a_job())))
    pods = ready_pods(job)
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert is_true(status, ConditionType.INVALID_CONFIG)
    assert (status.phase, status.assignment) == (Phase.RUNNING, job.status.assignment)
    shown = replace(job, status=status)
    assert planned(shown, observed(*pods)) == JobPlan()
    assert planned(shown, observed(pods[0])) == JobPlan()
    done = [a_pod(job, index, end=ended(message=report())) for index in (0, 1)]
    finished = planned(shown, observed(*done)).status
    assert finished is not None
    assert finished.phase == Phase.SUCCEEDED
    paused = replace(shown, spec=job.spec.model_copy(update={"suspend": True}))
    released = planned(paused, observed(*pods)).status
    assert released is not None
    assert (released.phase, released.assignment) == (Phase.SUSPENDED, None)
    mended = planned(replace(shown, verdict=Schedulable()), observed(*pods)).status
    assert mended is not None
    assert (is_true(mended, ConditionType.INVALID_CONFIG), mended.phase) == (False, Phase.RUNNING)


def test_a_job_without_a_verdict_yet_only_waits() -> None:
    job = replace(a_job(), verdict=Unjudged())
    assert (planned(job), is_queued(job)) == (JobPlan(), False)
