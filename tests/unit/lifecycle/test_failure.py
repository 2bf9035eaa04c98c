"""A member is lost or fails by itself: the others keep their places and their pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.plan.actions import (
    CreateMembers,
    DeleteGenerations,
    DeletePods,
    JobPlan,
    PushRecord,
)
from drumline.lifecycle.plan.failure import PEER_LOST_PATIENCE_SECONDS
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import ExitCode, FaultClass, FinalReport, Incident, Progress
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
from tests.unit.lifecycle.planning import decided, planned

NODES = ("node-a", "node-b", "node-c")
TEMPLATE = {"image": "any:1"}


def a_gang(**spec: Any) -> Job:
    return running(admitted(a_job(nodes=3, trainer={"globalBatchSize": 12}, **spec), nodes=NODES))


def standing_with(job: Job, index: int, **facts: Any) -> Observed:
    """All members stand but one, of which only this is known."""
    surviving = [pod for pod in ready_pods(job) if pod.index != index]
    return observed(*surviving, a_pod(job, index, **facts))


def lost_of(status: TrainingJobStatus) -> list[int] | None:
    assert status.assignment is not None
    return status.assignment.lost


def used(status: TrainingJobStatus) -> dict[str, int]:
    return {str(budget.fault_class): budget.used for budget in status.budgets or ()}


@pytest.mark.parametrize(
    ("facts", "reason", "charges"),
    [
        ({"terminating": True}, Reason.POD_LOST, {"Infrastructure": 1}),
        ({"end": ended(exit_code=None, reason="Evicted")}, Reason.POD_LOST, {"Infrastructure": 1}),
        ({"end": ended(exit_code=ExitCode.PREEMPTED)}, Reason.POD_LOST, {}),
        ({"end": ended(exit_code=None, reason="OutOfcpu")}, Reason.KUBELET_REFUSED, {}),
    ],
)
def test_a_lost_member_is_given_up_and_the_gang_stays(
    facts: dict[str, Any], reason: Reason, charges: dict[str, int]
) -> None:
    job = a_gang()
    status = decided(job, standing_with(job, 1, **facts))
    assert (lost_of(status), status.reason, status.phase) == ([1], reason, Phase.RECOVERING)
    assert members_of(status) == members_of(job.status)
    assert (status.generation, used(status), status.restarts) == (1, charges, len(charges))
    assert is_true(status, ConditionType.RECOVERING)
    assert not is_true(status, ConditionType.RUNNING)


def test_a_pod_that_vanished_is_lost() -> None:
    job = a_gang()
    status = decided(job, observed(*ready_pods(job)[:2]))
    assert (lost_of(status), status.reason) == ([2], Reason.POD_LOST)
    assert "llama-2-g1 on node-c disappeared" in (status.message or "")


def test_a_silent_member_is_lost_and_a_zombie_that_answers_its_peers_is_not() -> None:
    job = a_gang()
    pods = [replace(pod, ready=pod.index != 1) for pod in ready_pods(job)]
    assert planned(job, observed(*pods)).status is None
    status = decided(job, observed(*pods, silent=frozenset({pods[1].uid})))
    assert (lost_of(status), status.reason) == ([1], Reason.MEMBER_SILENT)
    last = status.last_incident
    assert last is not None
    assert (last.node, last.detect_milliseconds) == ("node-b", 5000)


def test_silence_of_an_earlier_pod_says_nothing_of_its_successor() -> None:
    job = a_gang()
    seen = observed(*ready_pods(job), silent=frozenset({"pod-1-0"}))
    assert planned(job, seen).status is None


def test_members_of_a_node_that_is_gone_are_lost_at_once() -> None:
    job = a_gang()
    status = decided(job, observed(*ready_pods(job), gone_nodes=frozenset({"node-a", "node-b"})))
    assert (lost_of(status), status.reason) == ([0, 1], Reason.NODE_LOST)
    assert (status.message or "").endswith("; and 1 more member")
    assert used(status) == {"Infrastructure": 1}


def test_when_all_members_are_lost_the_job_is_requeued() -> None:
    job = a_gang()
    status = decided(job, observed(*ready_pods(job), gone_nodes=frozenset(NODES)))
    assert (status.assignment, status.phase) == (None, Phase.PENDING)


def test_a_lost_pod_is_deleted_once_by_name_and_never_by_force() -> None:
    job = a_gang()
    silent = frozenset({"pod-1-1"})
    job = with_status(job, decided(job, observed(*ready_pods(job), silent=silent)))
    pods = ready_pods(job)
    first = planned(job, observed(*pods, silent=silent))
    assert first == JobPlan(actions=(DeletePods(pods=(pods[1],)),), requeue_at=T0 + 601)
    going = [replace(pod, terminating=pod.index == 1) for pod in pods]
    assert planned(job, observed(*going, silent=silent)) == JobPlan(requeue_at=T0 + 601)


def a_replaced_gang(*, node: str = "node-d") -> Job:
    job = a_gang()
    job = with_status(job, decided(job, standing_with(job, 1, terminating=True)))
    nodes = ["node-a", node, "node-c"]
    status = transitions.members_replaced(job, nodes=nodes, replaced=[1], epoch=EPOCH, now=T0 + 2)
    return with_status(job, status)


def test_only_the_lost_member_gets_a_new_pod() -> None:
    job = a_replaced_gang()
    assert job.status.generation == 2
    assert members_of(job.status)[1] == GangMember(index=1, node="node-d", pod_generation=2)
    old = a_pod(job, 1, generation=1, node="node-b", terminating=True)
    survivors = [pod for pod in ready_pods(job) if pod.index != 1]
    result = planned(job, observed(*survivors, old), now=T0 + 3)
    assert result.actions == (CreateMembers(indices=(1,)),)


def test_a_zombie_on_the_same_node_holds_its_devices_until_it_is_gone() -> None:
    job = a_replaced_gang(node="node-b")
    survivors = [pod for pod in ready_pods(job) if pod.index != 1]
    old = a_pod(job, 1, generation=1, terminating=True)
    assert planned(job, observed(*survivors, old), now=T0 + 3).actions == ()
    over = replace(old, end=ended(exit_code=137))
    result = planned(job, observed(*survivors, over), now=T0 + 3)
    assert result.actions == (CreateMembers(indices=(1,)),)


def test_the_record_of_the_next_generation_names_survivors_with_their_old_pods() -> None:
    job = a_replaced_gang()
    (push,) = planned(job, observed(*ready_pods(job)), now=T0 + 3).actions
    assert isinstance(push, PushRecord)
    members = [(m.index, m.pod_uid, m.node) for m in push.record.members]
    assert members == [
        (0, "pod-0-1", "node-a"),
        (1, "pod-1-2", "node-d"),
        (2, "pod-2-1", "node-c"),
    ]
    assert (push.record.generation, push.record.hang_timeout_seconds) == (2, 600.0)
    assert push.record.restarts_left == {"Application": 3, "OutOfMemory": 1, "Hang": 3}


def test_another_loss_on_the_way_is_the_same_incident() -> None:
    job = a_gang()
    job = with_status(job, decided(job, standing_with(job, 1, terminating=True)))
    pods = [a_pod(job, 0, terminating=True), ready_pods(job)[2]]
    status = decided(job, observed(*pods), now=T0 + 2)
    assert lost_of(status) == [0, 1]
    first, last = job.status.last_incident, status.last_incident
    assert first is not None
    assert last is not None
    both = f"{first.cause}; pod llama-0-g1 on node-a was deleted or evicted"
    assert last == first.model_copy(update={"cause": both})
    assert (used(status), status.earlier_incidents) == ({"Infrastructure": 2}, None)


def test_another_fault_on_the_way_counts_in_its_own_class_and_is_named_too() -> None:
    job = a_gang()
    seen = standing_with(job, 1, terminating=True)
    boom = a_pod(job, 0, end=ended(exit_code=1, message=words(error="rank 0: boom")))
    seen = replace(seen, pods=(boom, *seen.pods[1:]))
    lost = decided(job, seen)
    assert (lost_of(lost), used(lost)) == ([1], {"Infrastructure": 1})
    status = decided(with_status(job, lost), seen, now=T0 + 2)
    assert used(status) == {"Application": 1, "Infrastructure": 1}
    last = status.last_incident
    assert last is not None
    assert (last.index, last.fault_class) == (1, FaultClass.INFRASTRUCTURE)
    assert not missing(last.cause, "llama-0-g1", "1", "rank 0", "boom")


def test_of_members_lost_at_once_the_ledger_names_three() -> None:
    job = running(admitted(a_job(nodes=4, trainer={"globalBatchSize": 12}), nodes=(*NODES, "d")))
    both = decided(job, observed(*ready_pods(job)[2:])).last_incident
    status = decided(job, observed())
    assert (status.message or "").endswith("; and 3 more members")
    all_four = status.last_incident
    assert both is not None
    assert not missing(both.cause, "llama-0-g1", "disappeared", "llama-1-g1")
    assert all_four is not None
    assert not missing(all_four.cause, "llama-2-g1", "disappeared", "1")


def test_a_refusal_does_not_hide_a_loss() -> None:
    job = a_gang()
    refused = a_pod(job, 1, end=ended(exit_code=None, reason="OutOfcpu"))
    pods = (ready_pods(job)[0], refused, a_pod(job, 2, terminating=True))
    status = decided(job, observed(*pods))
    assert (lost_of(status), used(status)) == ([1, 2], {"Infrastructure": 1})
    assert status.last_incident is not None
    assert status.last_incident.index == 2


def test_a_lost_place_that_is_not_filled_releases_all_at_the_deadline() -> None:
    job = a_gang(startDeadlineSeconds=60)
    job = with_status(job, decided(job, standing_with(job, 1, terminating=True), now=T0 + 500))
    pods = [pod for pod in ready_pods(job) if pod.index != 1]
    assert planned(job, observed(*pods), now=T0 + 559) == JobPlan(requeue_at=T0 + 560)
    status = decided(job, observed(*pods), now=T0 + 560)
    assert (status.assignment, status.reason) == (None, Reason.START_DEADLINE_EXCEEDED)
    assert "1 lost member could not be replaced" in (status.message or "")


def test_lost_members_are_limited_where_the_user_wants_it() -> None:
    job = a_gang(recovery={"maxInfrastructureRestarts": 0})
    status = decided(job, standing_with(job, 1, terminating=True))
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.RESTARTS_EXHAUSTED)
    assert "recovery.maxInfrastructureRestarts" in (status.message or "")


def words(**rest: Any) -> str:
    progress = Progress(step=rest.pop("step", 5), total_steps=100)
    return FinalReport(progress=progress, **rest).encode().decode()


def test_a_member_that_failed_by_itself_gets_a_new_pod_where_it_was() -> None:
    job = a_gang()
    end = ended(exit_code=1, message=words(error="rank 2: ValueError: boom"))
    status = decided(job, standing_with(job, 1, end=end))
    births = [(member.node, member.pod_generation) for member in members_of(status)]
    assert births == [("node-a", 1), ("node-b", 2), ("node-c", 1)]
    assert (status.generation, status.restarts, status.reason) == (2, 1, Reason.POD_FAILED)
    job = with_status(job, status)
    survivors = [pod for pod in ready_pods(job) if pod.index != 1]
    old = a_pod(job, 1, generation=1, end=end)
    result = planned(job, observed(*survivors, old))
    assert result.actions == (DeletePods(pods=(old,)), CreateMembers(indices=(1,)))


def test_all_that_ended_get_new_pods() -> None:
    job = a_gang()
    pods = [
        a_pod(job, 0, end=ended(exit_code=ExitCode.PEER_LOST)),
        a_pod(job, 1, end=ended(exit_code=1)),
        a_pod(job, 2, end=ended(exit_code=ExitCode.PEER_LOST)),
    ]
    status = decided(job, observed(*pods))
    assert {member.pod_generation for member in members_of(status)} == {2}
    result = planned(with_status(job, status), observed(*pods))
    assert result.actions == (DeleteGenerations(generations=(1,)), CreateMembers(indices=(0, 1, 2)))


def test_when_the_agents_gave_up_all_pods_restart_once_however_late_they_end() -> None:
    job = a_gang()
    gave_up = {"error": "rank 2: ValueError: boom", "fault_class": FaultClass.APPLICATION}
    culprit = a_pod(job, 1, end=ended(exit_code=1, message=words(**gave_up)))
    up = ready_pods(job)
    status = decided(job, observed(up[0], culprit, up[2]))
    assert {member.pod_generation for member in members_of(status)} == {2}
    job = with_status(job, status)
    end = ended(exit_code=ExitCode.PEER_LOST, message=words(**gave_up))
    late = replace(up[0], ready=False, end=end)
    result = planned(job, observed(late, culprit, up[2]), now=T0 + 30)
    assert result.actions == (DeleteGenerations(generations=(1,)), CreateMembers(indices=(0, 1)))
    assert used(job.status) == {"Application": 1}


def test_members_that_join_are_not_known_to_agents_that_give_up() -> None:
    spec = {"minNodes": 1, "checkpoint": {"claimName": "shared"}}
    job = a_job(nodes=3, trainer={"globalBatchSize": 12}, **spec)
    job = running(admitted(job, nodes=NODES[:2]))
    grown = transitions.resized(job, kept=[0, 1], added=[NODES[2]], epoch=EPOCH, now=T0 + 1)
    job = with_status(job, grown)
    end = ended(exit_code=1, message=words(error="boom", fault_class=FaultClass.APPLICATION))
    status = decided(job, standing_with(job, 0, end=end))
    assert [member.pod_generation for member in members_of(status)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("end", "reason", "charged"),
    [
        (ended(exit_code=1), Reason.POD_FAILED, "Application"),
        (ended(exit_code=139), Reason.POD_FAILED, "Application"),
        (ended(exit_code=137, reason="OOMKilled"), Reason.OUT_OF_MEMORY, "OutOfMemory"),
        (
            ended(exit_code=1, message=words(fault_class=FaultClass.OUT_OF_MEMORY)),
            Reason.OUT_OF_MEMORY,
            "OutOfMemory",
        ),
        (ended(exit_code=1, message=words(fault_class=FaultClass.HANG)), Reason.HANG, "Hang"),
        (ended(exit_code=137), Reason.POD_FAILED, "Infrastructure"),
        (
            ended(exit_code=137, message=words(fault_class=FaultClass.INFRASTRUCTURE)),
            Reason.POD_FAILED,
            "Infrastructure",
        ),
        (
            ended(exit_code=137, message=words(fault_class=FaultClass.APPLICATION)),
            Reason.POD_FAILED,
            "Application",
        ),
    ],
)
def test_each_failure_counts_against_its_own_budget(end: Any, reason: Reason, charged: str) -> None:
    job = a_gang()
    status = decided(job, standing_with(job, 1, end=end))
    assert (status.reason, used(status)) == (reason, {charged: 1})


def test_a_second_out_of_memory_exhausts_the_budget() -> None:
    job = a_gang()
    end = ended(exit_code=137, reason="OOMKilled")
    job = with_status(job, decided(job, standing_with(job, 1, end=end)))
    job = running(job)
    status = decided(job, standing_with(job, 0, end=end))
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.RESTARTS_EXHAUSTED)
    assert not missing(status.message or "", "1 of 1", "recovery.maxOutOfMemoryRestarts")


def test_a_recovery_that_was_under_way_when_the_agents_gave_up_counts_too() -> None:
    job = a_gang()
    under_way = Incident(
        generation=1,
        attempt=1,
        fault_class=FaultClass.APPLICATION,
        cause="rank 2: boom",
        fault_at=T0,
        detected_at=T0,
        failed_step=4,
    )
    seen = standing_with(job, 1, end=ended(exit_code=1, message=words(error="rank 2: boom")))
    seen = replace(seen, incidents=(under_way,))
    status = decided(job, seen)
    assert (status.phase, used(status)) == (Phase.RECOVERING, {"Application": 2})
    assert "restart 2 of 3" in (status.message or "")


def test_a_budget_is_whole_again_after_its_window() -> None:
    job = a_gang(recovery={"maxRestarts": 1, "budgetWindowSeconds": 3600})
    end = ended(exit_code=1)
    job = running(with_status(job, decided(job, standing_with(job, 1, end=end), now=T0)))
    seen = standing_with(job, 1, end=end)
    assert decided(job, seen, now=T0 + 3599).phase is Phase.FAILED
    assert decided(job, seen, now=T0 + 3600).phase is Phase.RECOVERING


def stuck(job: Job, error: str, *, step: int) -> Job:
    end = ended(exit_code=1, message=report(step=step, error=error))
    return with_status(job, decided(job, standing_with(job, 1, end=end)))


def test_the_same_error_at_the_same_step_three_times_ends_the_job_with_a_clear_sentence() -> None:
    job = a_gang(recovery={"maxRestarts": 100})
    for _ in range(2):
        job = running(stuck(job, "rank 1: ValueError: boom", step=5))
    job = stuck(job, "rank 1: ValueError: boom", step=5)
    assert (job.status.phase, job.status.reason) == (Phase.FAILED, Reason.NO_PROGRESS)
    assert not missing(job.status.message or "", "3 times", "step 5")


def test_three_faults_without_a_new_step_end_the_job_too() -> None:
    job = a_gang(recovery={"maxRestarts": 100})
    for number in range(3):
        job = stuck(running(job), f"rank 1: ValueError: number {number}", step=5)
    assert job.status.reason == Reason.NO_PROGRESS
    assert not missing(job.status.message or "", "3 times", "step 5")


def test_faults_with_progress_between_them_do_not() -> None:
    job = a_gang(recovery={"maxRestarts": 100})
    for step in (5, 5, 6, 6, 7, 8):
        job = stuck(running(job), "rank 1: ValueError: boom", step=step)
    assert job.status.phase is Phase.RECOVERING


def test_ends_that_name_no_step_are_no_row() -> None:
    job = a_gang(recovery={"maxRestarts": 100})
    for _ in range(5):
        end = ended(exit_code=139)
        job = running(with_status(job, decided(job, standing_with(job, 1, end=end))))
    assert job.status.restarts == 5


def killed(job: Job, *, step: int) -> Job:
    message = words(
        step=step, error="rank 1: killed by SIGKILL", fault_class=FaultClass.INFRASTRUCTURE
    )
    end = ended(exit_code=137, message=message)
    return with_status(job, decided(job, standing_with(job, 1, end=end)))


def test_ranks_that_are_killed_from_outside_never_use_up_the_program_s_restarts() -> None:
    job = a_gang(recovery={"maxRestarts": 0})
    for step in range(5, 15):
        job = running(killed(job, step=step))
    assert (job.status.phase, used(job.status)) == (Phase.RUNNING, {"Infrastructure": 10})


def test_what_kills_a_rank_again_and_again_before_it_finishes_a_step_ends_the_job() -> None:
    job = a_gang()
    for _ in range(3):
        job = killed(job, step=5)
    assert (job.status.phase, job.status.reason) == (Phase.FAILED, Reason.NO_PROGRESS)


def test_members_that_peers_blame_and_that_show_no_end_are_lost_after_a_while() -> None:
    job = a_gang()
    lost = ended(exit_code=ExitCode.PEER_LOST, at=T0)
    seen = observed(a_pod(job, 0, end=lost), a_pod(job, 1, end=lost), ready_pods(job)[2])
    assert planned(job, seen, now=T0 + 9) == JobPlan(requeue_at=T0 + 10)
    status = decided(job, seen, now=T0 + 10)
    assert (lost_of(status), status.reason) == ([2], Reason.MEMBER_SILENT)
    assert used(status) == {"Infrastructure": 1}
    incident, job = status.last_incident, with_status(job, status)
    status = decided(job, seen, now=T0 + 10)
    assert lost_of(status) == [2]
    assert [member.pod_generation for member in members_of(status)] == [2, 2, 1]
    assert used(status) == {"Infrastructure": 1}
    assert incident is not None
    assert status.last_incident is not None
    assert status.last_incident.cause == incident.cause


@pytest.mark.parametrize(("ahead", "waits"), [(0.0, True), (9.0, True), (3600.0, False)])
def test_a_kubelet_whose_clock_is_ahead_delays_no_verdict_on_its_peers(
    ahead: float, waits: bool
) -> None:
    job = a_gang()
    end = ended(exit_code=ExitCode.PEER_LOST, at=T0 + ahead)
    plan = planned(job, standing_with(job, 1, end=end), now=T0 + 1)
    assert (plan.status is None) is waits
    assert plan.requeue_at == (T0 + ahead + PEER_LOST_PATIENCE_SECONDS if waits else None)


def peers_lost(reported: FaultClass | None, *, step: int = 5) -> Any:
    message = words(step=step, error="member 2 gave up: rank 5: boom", fault_class=reported)
    return ended(exit_code=ExitCode.PEER_LOST, at=T0, message=message)


@pytest.mark.parametrize(
    ("reported", "charged"),
    [
        (None, "Infrastructure"),
        (FaultClass.INFRASTRUCTURE, "Infrastructure"),
        (FaultClass.PREEMPTION, "Infrastructure"),
        (FaultClass.APPLICATION, "Application"),
        (FaultClass.OUT_OF_MEMORY, "OutOfMemory"),
        (FaultClass.HANG, "Hang"),
    ],
)
def test_what_is_but_a_consequence_counts_against_the_class_of_its_cause(
    reported: FaultClass | None, charged: str
) -> None:
    job = a_gang()
    status = decided(job, observed(*(a_pod(job, n, end=peers_lost(reported)) for n in range(3))))
    assert (used(status), lost_of(status)) == ({charged: 1}, None)
    assert {member.pod_generation for member in members_of(status)} == {2}
    assert status.last_incident is not None
    assert status.last_incident.fault_class == charged


def test_a_member_without_an_end_is_charged_to_the_class_its_peers_report() -> None:
    job = a_gang(recovery={"maxRestarts": 1})
    ends = [a_pod(job, n, end=peers_lost(FaultClass.APPLICATION)) for n in range(2)]
    seen = observed(*ends, ready_pods(job)[2])
    status = decided(job, seen, now=T0 + 10)
    assert (lost_of(status), used(status)) == ([2], {"Application": 1})
    assert not missing(status.message or "", "member 2", "rank 5", "boom")
    again = decided(with_status(job, status), seen, now=T0 + 11)
    assert (used(again), again.phase) == ({"Application": 1}, Phase.RECOVERING)


def test_what_lies_between_the_members_is_not_tried_for_ever() -> None:
    job = a_gang()
    for generation in range(1, 4):
        log = tuple(in_place_over_lost_peers(generation, attempt) for attempt in (1, 2))
        ends = [a_pod(job, n, end=peers_lost(FaultClass.INFRASTRUCTURE)) for n in range(3)]
        assert job.status.phase is Phase.RUNNING
        for _ in ("the first is counted", "given up"):
            job = with_status(job, decided(job, observed(*ends, incidents=log)))
        job = job if job.finished else running(job)
    assert (job.status.phase, job.status.reason) == (Phase.FAILED, Reason.NO_PROGRESS)
    assert not missing(job.status.message or "", "3 times", "step 5")


def in_place_over_lost_peers(generation: int, attempt: int) -> Incident:
    return Incident(
        generation=generation,
        attempt=attempt,
        fault_class=FaultClass.INFRASTRUCTURE,
        cause="rank 0: lost its peers",
        fault_at=T0,
        detected_at=T0,
        failed_step=5,
    )


@pytest.mark.parametrize(
    "facts", [{"terminating": True}, {"end": ended(exit_code=137)}, {"end": ended(exit_code=75)}]
)
def test_when_the_last_step_is_saved_a_failure_does_not_matter(facts: dict[str, Any]) -> None:
    job = a_gang()
    done = ended(message=report(step=100, checkpoint_step=100, checkpoint_digest="d"))
    pods = [a_pod(job, 0, end=done), a_pod(job, 1, end=done), a_pod(job, 2, **facts)]
    status = decided(job, observed(*pods))
    assert (status.phase, status.step) == (Phase.SUCCEEDED, 100)
    early = ended(message=report(step=99))
    pods = [a_pod(job, 0, end=early), a_pod(job, 1, end=early), a_pod(job, 2, **facts)]
    assert decided(job, observed(*pods)).phase is not Phase.SUCCEEDED


def test_a_pod_that_succeeded_too_early_is_replaced_in_the_next_generation() -> None:
    job = a_gang()
    early = ended(message=report(step=99))
    job = with_status(job, decided(job, observed(a_pod(job, 0, end=early), *ready_pods(job)[1:2])))
    nodes = [*NODES[:2], "node-d"]
    status = transitions.members_replaced(job, nodes=nodes, replaced=[2], epoch=EPOCH, now=T0 + 2)
    job = with_status(job, status)
    status = decided(job, observed(a_pod(job, 0, end=early), *ready_pods(job)[1:]), now=T0 + 3)
    assert [member.pod_generation for member in members_of(status)] == [3, 1, 2]
    assert used(status) == used(job.status)


@pytest.mark.parametrize("facts", [{"terminating": True}, {"end": ended(exit_code=1)}])
def test_a_gang_with_a_template_of_its_own_starts_again_as_a_whole(facts: dict[str, Any]) -> None:
    job = running(admitted(a_job(nodes=3, template=TEMPLATE), nodes=NODES))
    status = decided(job, standing_with(job, 1, **facts))
    if "end" in facts:
        assert {member.pod_generation for member in members_of(status)} == {2}
    else:
        assert status.assignment is None


@pytest.mark.parametrize("code", ExitCode)
def test_exit_codes_of_a_template_are_its_own(code: ExitCode) -> None:
    if code is ExitCode.OK:
        return
    job = running(admitted(a_job(nodes=3, template=TEMPLATE), nodes=NODES))
    status = decided(job, standing_with(job, 1, end=ended(exit_code=code)))
    assert (status.reason, used(status)) == (Reason.POD_FAILED, {"Application": 1})
