"""plan(): given a job and its pods, what is written and done next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.api.conditions import ConditionType, Phase, Reason
from drumline.lifecycle import status as to
from drumline.lifecycle.actions import (
    CreateMembers,
    DeleteJob,
    DeletePods,
    Plan,
    ProtectMembers,
    PushRecord,
)
from drumline.lifecycle.deadlines import restart_backoff_seconds
from drumline.lifecycle.job import Job, Observed
from drumline.lifecycle.plan import is_queued, plan
from drumline_trainer.contract import ExitCode, Progress
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


def planned(job: Job, seen: Observed | None = None, *, now: float = T0 + 1) -> Plan:
    return plan(job, seen or observed(), now=now, epoch=EPOCH)


TEMPLATE = {"image": "any:1", "command": ["true"]}


def test_a_new_job_waits_for_the_scheduler() -> None:
    job = a_job()
    assert is_queued(job)
    assert planned(job) == Plan()


def test_a_job_managed_by_another_controller_is_left_alone() -> None:
    job = a_job(managedBy="kueue.x-k8s.io/multikueue")
    assert not is_queued(job)
    assert planned(admitted(job)) == Plan()


def test_all_members_of_an_admitted_job_are_created_at_once() -> None:
    result = planned(admitted(a_job()))
    assert result.status is None
    assert result.actions == (CreateMembers(indices=(0, 1)),)


def test_only_missing_members_are_created_again_before_the_start() -> None:
    job = admitted(a_job())
    assert planned(job, observed(a_pod(job, 0))).actions == (CreateMembers(indices=(1,)),)


def test_pods_the_cache_has_not_shown_yet_are_not_created_twice() -> None:
    job = admitted(a_job())
    seen = observed(a_pod(job, 0), expected_pods=frozenset({"llama-1-g1"}))
    assert planned(job, seen).actions == ()
    unseen = frozenset({"llama-0-g1", "llama-1-g1"})
    assert planned(job, observed(expected_pods=unseen)).actions == ()


def test_the_record_is_pushed_when_every_agent_can_be_told() -> None:
    job = admitted(a_job())
    first, second = ready_pods(job)
    assert planned(job, observed(first, a_pod(job, 1))).actions == ()
    (push,) = planned(job, observed(first, second)).actions
    assert isinstance(push, PushRecord)
    assert push.record.generation == 1
    assert push.record.epoch == EPOCH
    assert [(m.index, m.address, m.ranks) for m in push.record.members] == [
        (0, "10.0.0.1", 2),
        (1, "10.0.0.2", 2),
    ]


def test_own_template_pods_are_told_while_their_join_container_runs() -> None:
    job = admitted(a_job(template=TEMPLATE))
    pods = [a_pod(job, i, ip=f"10.0.0.{i}", joining=True) for i in (0, 1)]
    (push,) = planned(job, observed(*pods)).actions
    assert isinstance(push, PushRecord)


def test_the_job_runs_once_its_record_is_acknowledged() -> None:
    job = admitted(a_job())
    told = observed(*ready_pods(job), acknowledged_generation=1)
    assert planned(job, told).actions == (ProtectMembers(),)
    result = planned(job, replace(told, protected=True))
    assert result.status is not None
    assert result.status.phase is Phase.RUNNING
    assert result.status.ready == "2/2"
    assert to.is_true(result.status, ConditionType.RUNNING)


def test_an_old_generations_acknowledgement_does_not_start_the_new_one() -> None:
    job = admitted(running(admitted(a_job())))
    assert job.status.generation == 2
    (push,) = planned(job, observed(*ready_pods(job), acknowledged_generation=1)).actions
    assert isinstance(push, PushRecord)


def test_own_template_job_runs_when_every_container_does() -> None:
    job = admitted(a_job(template=TEMPLATE))
    result = planned(job, observed(*ready_pods(job), protected=True))
    assert result.status is not None
    assert result.status.phase is Phase.RUNNING


def test_success_takes_step_and_loss_from_the_first_pods_last_words() -> None:
    job = running(admitted(a_job()))
    words = report(step=100, loss=2.345, checkpoint_step=100, checkpoint_digest="abc")
    pods = [a_pod(job, i, end=ended(message=words)) for i in (0, 1)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.step, status.loss) == (Phase.SUCCEEDED, 100, "2.3450")
    assert status.checkpoint is not None
    assert status.checkpoint.digest == "abc"
    assert to.is_true(status, ConditionType.SUCCEEDED)


def test_one_member_ending_well_is_not_the_end() -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, 0, end=ended()), a_pod(job, 1, ip="10.0.0.2", ready=True)]
    assert planned(job, observed(*pods)).status is None


def test_an_application_error_restarts_the_gang_on_its_nodes_and_is_charged() -> None:
    job = running(admitted(a_job()))
    words = report(error="rank 1: ValueError: boom")
    pods = [
        a_pod(job, 0, end=ended(exit_code=ExitCode.PEER_LOST)),
        a_pod(job, 1, end=ended(exit_code=1, message=words)),
    ]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.generation, status.restarts, status.phase) == (2, 1, Phase.RECOVERING)
    assert status.assignment is not None
    assert status.assignment.node_names() == ("node-a", "node-b")
    assert "rank 1: ValueError: boom" in (status.incident or "")
    assert "restart 1 of 3" in (status.message or "")


def test_members_that_lost_a_peer_wait_for_that_peers_own_end() -> None:
    job = running(admitted(a_job()))
    lost = ended(exit_code=ExitCode.PEER_LOST, at=T0)
    pods = [a_pod(job, 0, end=lost), a_pod(job, 1, ready=True, ip="10.0.0.2")]
    assert planned(job, observed(*pods), now=T0 + 9) == Plan(requeue_at=T0 + 10)
    assert planned(job, observed(*pods), now=T0 + 10).status is not None


def test_the_next_generation_waits_until_the_last_one_gave_its_devices_back() -> None:
    job = running(admitted(a_job(template=TEMPLATE)))
    failed = [a_pod(job, 0, ready=True, ip="1.1.1.1"), a_pod(job, 1, ready=True, ip="1.1.1.2")]
    ill = [failed[0], a_pod(job, 1, end=ended(exit_code=1))]
    job = with_status(job, planned(job, observed(*ill)).status)
    assert planned(job, observed(*failed)).actions == (DeletePods(generations=(1,)),)
    leaving = a_pod(job, 0, generation=1, terminating=True)
    assert planned(job, observed(leaving)).actions == (CreateMembers(indices=(1,)),)
    assert planned(job, observed()).actions == (CreateMembers(indices=(0, 1)),)


def test_restarts_back_off_but_the_first_does_not() -> None:
    assert [restart_backoff_seconds(n) for n in (1, 2, 3, 4, 20)] == [0, 5, 10, 20, 300]
    job = running(admitted(a_job()))
    for _ in range(2):
        pods = [a_pod(job, 0, end=ended(exit_code=1)), a_pod(job, 1, end=ended(exit_code=1))]
        job = with_status(job, planned(job, observed(*pods), now=T0).status)
    assert planned(job, now=T0 + 4) == Plan(requeue_at=T0 + 5)
    assert planned(job, now=T0 + 5).actions == (CreateMembers(indices=(0, 1)),)


def test_the_job_fails_when_its_restarts_are_used_up() -> None:
    job = running(admitted(a_job(recovery={"maxRestarts": 0})))
    pods = [a_pod(job, i, end=ended(exit_code=1, message="boom")) for i in (0, 1)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.RESTARTS_EXHAUSTED)
    assert "boom; used 0 of 0 restarts (recovery.maxRestarts)" in (status.message or "")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ExitCode.CONFIG, Reason.CONFIG_REFUSED),
        (ExitCode.CORRUPT_CHECKPOINT, Reason.CORRUPT_CHECKPOINT),
    ],
)
def test_what_can_never_work_is_not_tried_again(code: ExitCode, reason: Reason) -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, 0, end=ended(exit_code=code)), a_pod(job, 1, ready=True)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, reason)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"terminating": True}, Reason.POD_LOST),
        ({"end": ended(exit_code=None, reason="Evicted")}, Reason.POD_LOST),
        ({"end": ended(exit_code=137), "terminating": True}, Reason.POD_LOST),
        (
            {"end": ended(exit_code=None, reason="UnexpectedAdmissionError")},
            Reason.KUBELET_REFUSED,
        ),
        ({"end": ended(exit_code=None, reason="OutOfnvidia.com/gpu")}, Reason.KUBELET_REFUSED),
    ],
)
def test_a_lost_or_refused_pod_places_a_gang_of_ones_own_anew_and_costs_no_restart(
    pod: dict[str, Any], reason: Reason
) -> None:
    job = running(admitted(a_job(template=TEMPLATE)))
    pods = [a_pod(job, 0, ready=True, ip="1.1.1.1"), a_pod(job, 1, **pod)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.assignment, status.restarts, status.reason) == (None, 0, reason)
    released = with_status(job, status)
    assert is_queued(released)
    assert planned(released, observed(pods[0])).actions == (DeletePods(generations=(1,)),)


def test_a_pod_that_vanished_while_running_is_a_lost_pod() -> None:
    job = running(admitted(a_job(template=TEMPLATE)))
    status = planned(job, observed(a_pod(job, 0, ready=True, ip="1.1.1.1"))).status
    assert status is not None
    assert status.reason == Reason.POD_LOST
    assert "llama-1-g1" in (status.message or "")


def test_the_start_deadline_releases_everything_and_names_who_was_late() -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    pods = [ready_pods(job)[0], a_pod(job, 1, waiting="ImagePullBackOff: not found")]
    status = planned(job, observed(*pods), now=T0 + 60).status
    assert status is not None
    assert status.assignment is None
    assert status.reason == Reason.START_DEADLINE_EXCEEDED
    assert "llama-1-g1 on node-b: ImagePullBackOff: not found" in (status.message or "")


def test_a_slow_start_says_what_it_waits_for() -> None:
    job = admitted(a_job())
    pods = [ready_pods(job)[0], a_pod(job, 1, waiting="ErrImagePull: no such host")]
    assert planned(job, observed(*pods), now=T0 + 9).status is None
    status = planned(job, observed(*pods), now=T0 + 10).status
    assert status is not None
    assert (status.reason, status.ready) == (Reason.PULLING_IMAGES, "1/2")
    again = planned(with_status(job, status), observed(*pods), now=T0 + 20)
    assert again.status is None
    one_more = observed(*ready_pods(job)[:1], a_pod(job, 1), refresh_due=False)
    assert planned(with_status(job, status), one_more, now=T0 + 20).status is None


def test_suspending_gives_everything_back_and_resuming_queues_behind() -> None:
    job = with_spec(running(admitted(a_job())), suspend=True)
    pods = ready_pods(job)
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.assignment) == (Phase.SUSPENDED, None)
    job = with_status(job, status)
    assert not is_queued(job)
    assert planned(job, observed(*pods)).actions == (DeletePods(generations=(1,)),)
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
        DeletePods(generations=(1,)),
    )


def test_a_finished_job_keeps_its_ended_pods_until_the_ttl() -> None:
    job = running(admitted(a_job(ttlSecondsAfterFinished=60)))
    pods = [a_pod(job, i, end=ended()) for i in (0, 1)]
    job = with_status(job, planned(job, observed(*pods), now=T0).status)
    assert planned(job, observed(*pods), now=T0 + 1) == Plan(requeue_at=T0 + 60)
    assert planned(job, observed(*pods), now=T0 + 60).actions == (DeleteJob(),)


def test_a_configuration_the_trainer_refuses_is_never_scheduled() -> None:
    job = a_job(trainer={"model": "tiny", "overrides": {"optimizer": {"learning_rat": 1}}})
    assert not is_queued(job)
    status = planned(job).status
    assert status is not None
    assert to.is_true(status, ConditionType.INVALID_CONFIG)
    assert "did you mean 'learning_rate'?" in (status.message or "")
    assert planned(with_status(job, status)) == Plan()
    mended = with_spec(with_status(job, status), trainer=a_job().spec.trainer)
    assert planned(mended).status is not None
    assert is_queued(mended)


def test_a_new_leader_marks_an_active_job_before_it_touches_it() -> None:
    job = running(admitted(a_job()))
    result = plan(job, observed(*ready_pods(job)), now=T0, epoch=EPOCH + 1)
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
    stray = a_pod(job, 0, generation=1, ready=True)
    assert planned(job, observed(stray)).actions == (DeletePods(generations=(1,)),)


@pytest.mark.parametrize("expected", [frozenset[str](), frozenset({"llama-1-g1"})])
def test_a_part_of_a_gang_is_never_bound_past_the_start_deadline(expected: frozenset[str]) -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    seen = observed(ready_pods(job)[0], expected_pods=expected)
    before = planned(job, seen, now=T0 + 59)
    assert before.status is None
    assert before.requeue_at == T0 + 60
    status = planned(job, seen, now=T0 + 60).status
    assert status is not None
    assert (status.assignment, status.reason) == (None, Reason.START_DEADLINE_EXCEEDED)
    assert "1 pods are not created" in (status.message or "")


def test_places_are_not_held_for_ever_while_an_earlier_generation_does_not_go() -> None:
    job = admitted(running(admitted(a_job(startDeadlineSeconds=60))))
    stuck = a_pod(job, 0, generation=1, terminating=True)
    other = ready_pods(job)[1]
    assert planned(job, observed(stuck, other)) == Plan(requeue_at=T0 + 60)
    status = planned(job, observed(stuck, other), now=T0 + 60).status
    assert status is not None
    assert status.assignment is None
    assert "earlier generation to go: llama-0-g1 on node-a" in (status.message or "")


def test_a_member_that_is_through_shows_that_the_record_was_known() -> None:
    job = admitted(a_job())
    pods = [a_pod(job, 0, end=ended()), ready_pods(job)[1]]
    status = planned(job, observed(*pods, protected=True)).status
    assert status is not None
    assert status.phase is Phase.RUNNING


def test_blame_without_a_time_is_acted_upon_at_once() -> None:
    job = running(admitted(a_job()))
    lost = ended(exit_code=ExitCode.PEER_LOST, at=None)
    pods = [a_pod(job, 0, end=lost), a_pod(job, 1, ready=True, ip="10.0.0.2")]
    assert planned(job, observed(*pods)).status is not None


@pytest.mark.parametrize("suspend", [False, True])
def test_a_job_that_is_over_or_paused_recovers_no_longer(suspend: bool) -> None:
    job = running(admitted(a_job(recovery={"maxRestarts": 1})))
    broken = [a_pod(job, i, end=ended(exit_code=1)) for i in (0, 1)]
    job = with_status(job, planned(job, observed(*broken)).status)
    assert to.is_true(job.status, ConditionType.RECOVERING)
    job = with_spec(job, suspend=suspend)
    again = [a_pod(job, i, end=ended(exit_code=1)) for i in (0, 1)]
    status = planned(job, observed(*again)).status
    assert status is not None
    assert status.phase is (Phase.SUSPENDED if suspend else Phase.FAILED)
    assert not to.is_true(status, ConditionType.RECOVERING)


def test_a_pod_of_the_last_generation_that_was_not_shown_yet_is_waited_for() -> None:
    job = admitted(running(admitted(a_job())))
    unshown = observed(expected_pods=frozenset({"llama-1-g1"}))
    assert planned(job, unshown) == Plan(requeue_at=T0 + 600)
    assert planned(job, observed()).actions == (CreateMembers(indices=(0, 1)),)
