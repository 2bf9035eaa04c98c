"""Nodes that are about to go: a cordon asks and takes no member, what is certain is answered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.observed import NodeDisruption, Observed
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.actions import DeleteGenerations, JobPlan, Notify, ProtectMembers
from drumline.lifecycle.plan.node_disruption import Step, Workload, evacuated, next_step
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.jobstatus import CheckpointStatus, TrainingJobStatus
from drumline_contract import FaultClass, Notice, NoticeAnswer
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    ready_pods,
    running,
    with_status,
)
from tests.texts import missing
from tests.unit.lifecycle import planning

TEMPLATE = {"image": "any:1", "terminationGracePeriodSeconds": 40}
CLAIM = {"claimName": "shared"}
SAVES, UNSAVED = Workload.SAVES, Workload.UNSAVED
OWN = Workload.TEMPLATE
SAVE, STAY, MOVE, LEAVE = Step.SAVE, Step.STAY, Step.MOVE_IF_PLACED, Step.LEAVE

TABLE = [
    # workload, certain, saved, late: step
    (SAVES, False, False, False, SAVE),
    (SAVES, False, True, False, MOVE),
    (SAVES, False, True, True, MOVE),
    (OWN, False, False, False, STAY),
    (OWN, False, False, True, STAY),
    (UNSAVED, False, False, False, STAY),
    (UNSAVED, False, False, True, STAY),
    (SAVES, True, False, False, SAVE),
    (SAVES, True, True, False, MOVE),
    (SAVES, True, False, True, LEAVE),
    (SAVES, True, True, True, LEAVE),
    (OWN, True, False, False, MOVE),
    (OWN, True, False, True, LEAVE),
    (UNSAVED, True, False, False, STAY),
    (UNSAVED, True, False, True, LEAVE),
]


@pytest.mark.parametrize(("workload", "certain", "saved", "late", "step"), TABLE)
def test_the_next_step(
    workload: Workload, certain: bool, saved: bool, late: bool, step: Step
) -> None:
    assert next_step(workload, certain=certain, saved=saved, late=late) is step


@pytest.mark.parametrize("workload", Workload)
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_cordon_alone_never_makes_members_leave(
    workload: Workload, saved: bool, late: bool
) -> None:
    assert next_step(workload, certain=False, saved=saved, late=late) is not LEAVE


def a_running_job(**spec: Any) -> Job:
    form = {"checkpoint": CLAIM} if "template" not in spec else {}
    return running(admitted(a_job(**form, **spec)))


def three_members(**spec: Any) -> Job:
    job = a_job(checkpoint=CLAIM, nodes=3, **spec)
    return running(admitted(job, nodes=("a", "b", "c")))


def reclaim(node: str = "node-b", *, deadline: float | None = T0 + 130) -> NodeDisruption:
    kind = DisruptionKind.SPOT_RECLAIM
    source = "aws-node-termination-handler"
    return NodeDisruption(node=node, kind=kind, source=source, deadline=deadline)


def cordon(node: str = "node-b") -> NodeDisruption:
    kind, source = DisruptionKind.DRAIN, "spec.unschedulable"
    return NodeDisruption(node=node, kind=kind, source=source, certain=False)


def seen_on(job: Job, *announced: NodeDisruption, **rest: Any) -> Observed:
    return observed(*ready_pods(job), **{"evictable": 0, "node_disruptions": announced, **rest})


planned = partial(planning.planned, now=T0 + 11)
decided = partial(planning.decided, now=T0 + 11)


def notice_of(job: Job) -> str:
    assert job.status.disruption is not None
    return job.status.disruption.id


def disrupted(job: Job, *announced: NodeDisruption) -> Job:
    return with_status(job, decided(job, seen_on(job, *(announced or (reclaim(),))), now=T0 + 10))


def answer_of(job: Job, **fields: Any) -> NoticeAnswer:
    return NoticeAnswer(id=notice_of(job), **(fields or {"step": 42, "digest": "abc"}))


def saved(job: Job, *announced: NodeDisruption, now: float = T0 + 12) -> Job:
    """The job after its agents saved on request."""
    seen = seen_on(job, *(announced or (reclaim(),)), notice=answer_of(job))
    return with_status(job, decided(job, seen, now=now))


def lost_by(status: TrainingJobStatus) -> list[int] | None:
    assert status.assignment is not None
    return status.assignment.lost


# --- templates whose program uses the client ---------------------------------------------------


def test_a_template_whose_program_acknowledges_saves_is_asked_before_it_moves() -> None:
    template = {**TEMPLATE, "command": ["run"], "launch": "PerGpu"}
    job = a_running_job(template=template)
    seen = seen_on(job, reclaim(), acknowledges_saves=True)
    job = with_status(job, decided(job, seen, now=T0 + 10))
    seen = seen_on(job, reclaim(), acknowledges_saves=True)
    [asked] = planned(job, seen).actions
    assert isinstance(asked, Notify)
    assert (asked.notice.id, asked.notice.leave) == (notice_of(job), False)
    seen = seen_on(job, reclaim(), acknowledges_saves=True, notice=answer_of(job))
    status = decided(job, seen)
    assert status.disruption is not None
    assert status.disruption.movable
    assert "saved step 42" in (status.message or "")


def test_half_of_a_short_notice_is_for_a_save_that_is_acknowledged() -> None:
    """30 s, of which SIGTERM would take all, with the margin."""
    template = {**TEMPLATE, "command": ["run"], "launch": "PerGpu"}
    job, short = a_running_job(template=template), reclaim(deadline=T0 + 40)

    def seen(**rest: Any) -> Observed:
        return seen_on(job, short, acknowledges_saves=True, **rest)

    job = with_status(job, decided(job, seen(), now=T0 + 10))
    [asked] = planned(job, seen(), now=T0 + 11).actions
    assert isinstance(asked, Notify)
    status = decided(job, seen(notice=answer_of(job)), now=T0 + 12)
    assert status.disruption is not None
    assert status.disruption.movable
    silent = seen(notified=notice_of(job))
    assert planned(job, silent, now=T0 + 24.9).status is None
    assert decided(job, silent, now=T0 + 25).reason == Reason.NODE_DISRUPTED


# --- what is announced -----------------------------------------------------------------------


def test_members_on_a_node_that_goes_are_named_with_kind_and_time() -> None:
    job = disrupted(a_running_job())
    disruption = job.status.disruption
    assert disruption is not None
    assert (disruption.kind, disruption.indices) == (DisruptionKind.SPOT_RECLAIM, [1])
    assert parse_timestamp(disruption.deadline or "") == T0 + 130
    assert not missing(job.status.message, "SpotReclaim", "node-b", "120 s")
    assert job.status.reason == Reason.NODE_DISRUPTED


def test_a_certain_end_without_a_deadline_comes_in_five_minutes() -> None:
    job = disrupted(a_running_job(), reclaim(deadline=None))
    assert job.status.disruption is not None
    assert parse_timestamp(job.status.disruption.deadline or "") == T0 + 310


def test_a_cordon_has_no_deadline() -> None:
    job = disrupted(a_running_job(), cordon())
    disruption = job.status.disruption
    assert disruption is not None
    assert (disruption.kind, disruption.indices) == (DisruptionKind.DRAIN, [1])
    assert (disruption.deadline, disruption.movable) == (None, None)
    assert not missing(job.status.message, "Drain", "node-b", "spec.unschedulable")
    assert (job.status.phase, is_true(job.status, ConditionType.RUNNING)) == (Phase.RUNNING, True)


def test_another_node_joins_the_disruption_and_its_notice() -> None:
    job = disrupted(three_members(), reclaim("b"))
    first = job.status.disruption
    seen = seen_on(job, reclaim("b"), reclaim("c", deadline=T0 + 60))
    second = decided(job, seen, now=T0 + 20).disruption
    assert first is not None
    assert second is not None
    assert (second.id, second.indices) == (first.id, [1, 2])
    assert second.requested_at == first.requested_at
    assert parse_timestamp(second.deadline or "") == T0 + 60


def test_members_on_a_cordoned_node_do_not_leave_with_members_of_a_reclaim() -> None:
    job = disrupted(three_members(), cordon("b"), reclaim("c"))
    assert job.status.disruption is not None
    assert job.status.disruption.indices == [2]
    status = decided(job, seen_on(job, cordon("b"), reclaim("c")), now=T0 + 130)
    assert lost_by(status) == [2]


def test_what_a_cordon_was_the_first_sign_of_is_said_when_it_is_known() -> None:
    job = disrupted(a_running_job(), cordon())
    first = job.status.disruption
    job = with_status(job, decided(job, seen_on(job, reclaim())))
    second = job.status.disruption
    assert first is not None
    assert second is not None
    assert (second.id, second.kind) == (first.id, DisruptionKind.SPOT_RECLAIM)
    assert parse_timestamp(second.deadline or "") == T0 + 130
    later = seen_on(job, reclaim(deadline=T0 + 400), notified=first.id)
    assert planned(job, later) == JobPlan(requeue_at=T0 + 130)


def test_a_gang_that_saved_for_a_cordon_saves_again_for_what_follows() -> None:
    job = saved(disrupted(a_running_job(), cordon()), cordon())
    first = notice_of(job)
    seen = seen_on(job, reclaim(deadline=T0 + 7000), notice=answer_of(job), evictable=1)
    job = with_status(job, decided(job, seen, now=T0 + 5000))
    assert job.status.disruption is not None
    assert (notice_of(job) != first, job.status.disruption.movable) == (True, None)
    asked = planned(job, replace(seen, notified=first), now=T0 + 5000).actions
    assert [action.notice.id for action in asked if isinstance(action, Notify)] == [notice_of(job)]


# --- the bundled trainer with a checkpoint ----------------------------------------------------


@pytest.mark.parametrize("announced", [reclaim(), cordon()])
def test_all_save_and_no_member_leaves_before_another_node_is_found(
    announced: NodeDisruption,
) -> None:
    job = disrupted(a_running_job(), announced)
    seen = seen_on(job, announced)
    until = T0 + 130 if announced.certain else T0 + 310
    notice = Notice(job_uid=job.uid, id=notice_of(job), deadline=until, leave=False)
    assert planned(job, seen) == JobPlan(actions=(Notify(notice=notice),), requeue_at=until)
    job = saved(job, announced)
    assert job.status.disruption is not None
    assert (lost_by(job.status), job.status.disruption.movable) == (None, True)
    assert job.status.checkpoint == CheckpointStatus(step=42, digest="abc")
    assert "saved step 42" in (job.status.message or "")
    seen = replace(seen, notice=answer_of(job))
    assert planned(job, seen).actions == (ProtectMembers(evictable=1),)
    assert planned(job, replace(seen, evictable=1)).status is None


@pytest.mark.parametrize(
    ("rest", "now"), [({}, T0 + 310), ({"error": "disk full"}, T0 + 11)], ids=["late", "error"]
)
def test_a_drain_does_not_wait_for_ever_for_a_save(rest: dict[str, Any], now: float) -> None:
    job = disrupted(a_running_job(), cordon())
    seen = seen_on(job, cordon())
    if rest:
        seen = replace(seen, notice=answer_of(job, **rest))
    status = decided(job, seen, now=now)
    assert status.disruption is not None
    assert (lost_by(status), status.disruption.movable) == (None, True)
    assert "was not saved in time" in (status.message or "")


def test_after_a_cordon_figures_go_on_and_time_takes_no_member() -> None:
    job = saved(disrupted(a_running_job(), cordon()), cordon())
    seen = seen_on(job, cordon(), notice=answer_of(job), evictable=1)
    assert planned(job, seen, now=T0 + 1_000_000) == JobPlan()


def test_members_without_another_node_save_again_and_leave_at_the_deadline() -> None:
    reclaimed = reclaim(deadline=T0 + 200)
    job = saved(disrupted(a_running_job(), reclaimed), reclaimed)
    seen = seen_on(job, reclaimed, notice=answer_of(job), evictable=1)
    assert planned(job, seen, now=T0 + 100) == JobPlan(requeue_at=T0 + 140)
    first = notice_of(job)
    job = with_status(job, decided(job, seen, now=T0 + 140))
    assert notice_of(job) != first
    seen = replace(seen, notified=first)
    assert isinstance(planned(job, seen, now=T0 + 140).actions[0], Notify)
    again = NoticeAnswer(id=notice_of(job), step=90, digest="def")
    job = with_status(job, decided(job, replace(seen, notice=again), now=T0 + 145))
    seen = replace(seen, notice=again, notified=again.id)
    assert planned(job, seen, now=T0 + 150) == JobPlan(requeue_at=T0 + 200)
    status = decided(job, seen, now=T0 + 200)
    assert (lost_by(status), status.disruption) == ([1], None)
    assert status.checkpoint == CheckpointStatus(step=90, digest="def")
    assert (status.reason, status.restarts, status.budgets) == (Reason.NODE_DISRUPTED, 0, None)


def test_a_member_is_given_up_and_placed_in_a_single_write() -> None:
    job = saved(disrupted(a_running_job(), cordon()), cordon())
    status = evacuated(job, nodes=("node-a", "node-c"), positions=(1,), epoch=EPOCH, now=T0 + 20)
    before, after = members_of(job.status), members_of(status)
    assert [member.node for member in after] == ["node-a", "node-c"]
    assert (after[0], after[1].pod_generation) == (before[0], 2)
    assert (status.generation, status.disruption, lost_by(status)) == (2, None, None)
    assert (status.restarts, status.budgets) == (0, None)
    last = status.last_incident
    assert last is not None
    assert last.fault_class is FaultClass.PREEMPTION
    assert not missing(last.cause, "Drain", "node-b", "spec.unschedulable")


def test_when_an_announcement_is_withdrawn_its_member_stays() -> None:
    job = disrupted(three_members(), reclaim("b"), reclaim("c"))
    job = with_status(job, decided(job, seen_on(job, reclaim("c"))))
    seen = seen_on(job, reclaim("c"), notice=answer_of(job))
    assert lost_by(decided(job, seen, now=T0 + 130)) == [2]


def test_when_every_node_goes_the_job_queues_again_at_the_deadline() -> None:
    both = (reclaim("node-a"), reclaim("node-b"))
    job = saved(disrupted(a_running_job(), *both), *both)
    status = decided(job, seen_on(job, *both, notice=answer_of(job)), now=T0 + 130)
    assert (status.assignment, status.reason) == (None, Reason.NODE_DISRUPTED)
    assert status.queued_at == job.status.queued_at


def test_a_disruption_is_announced_again_in_the_next_generation() -> None:
    job = disrupted(a_running_job())
    pods = [a_pod(job, 0, end=ended(exit_code=1)), ready_pods(job)[1]]
    again = with_status(job, decided(job, observed(*pods, node_disruptions=(reclaim(),))))
    assert (again.status.generation, again.status.disruption) == (2, None)
    assert not is_true(again.status, ConditionType.DISRUPTED)
    again = disrupted(running(again))
    assert notice_of(again) != notice_of(job)


def test_an_announcement_that_is_taken_back_protects_all_members_again() -> None:
    job = saved(disrupted(a_running_job(), cordon()), cordon())
    opened = seen_on(job, evictable=1, notice=answer_of(job))
    for unsure in (opened, replace(opened, evictable=None)):  # None: after a restart
        assert planned(job, unsure) == JobPlan(actions=(ProtectMembers(evictable=0),))
    status = decided(job, replace(opened, evictable=0))
    assert status.disruption is None
    assert (status.reason, is_true(status, ConditionType.RUNNING)) == (Reason.TRAINING, True)
    assert planned(with_status(job, status), replace(opened, evictable=0)) == JobPlan()


# --- the bundled trainer without a checkpoint ---------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_without_a_checkpoint_a_cordon_moves_nothing(nodes: int) -> None:
    names = ("node-a", "node-b")[-nodes:]
    job = running(admitted(a_job(nodes=nodes), nodes=names))
    job = disrupted(job, cordon())
    seen = seen_on(job, cordon())
    assert planned(job, seen).actions == (ProtectMembers(evictable=1),)
    assert planned(job, replace(seen, evictable=1), now=T0 + 1_000_000) == JobPlan()
    assert job.status.disruption is not None
    assert job.status.disruption.movable is None


def test_without_a_checkpoint_members_leave_at_the_deadline_only() -> None:
    job = disrupted(running(admitted(a_job())))
    assert job.status.disruption is not None
    assert job.status.disruption.movable is None
    seen = seen_on(job, reclaim(), evictable=1)
    assert planned(job, seen, now=T0 + 80) == JobPlan(requeue_at=T0 + 130)
    assert lost_by(decided(job, seen, now=T0 + 130)) == [1]


# --- pod templates ----------------------------------------------------------------------------


def test_a_cordon_lets_a_template_run_and_its_drain_evict() -> None:
    job = disrupted(a_running_job(template=TEMPLATE), cordon())
    seen = seen_on(job, cordon())
    assert planned(job, seen).actions == (ProtectMembers(evictable=1),)
    assert planned(job, replace(seen, evictable=1), now=T0 + 1_000_000) == JobPlan()
    assert job.status.disruption is not None
    assert job.status.disruption.movable is None


def test_an_eviction_ends_the_whole_gang_of_a_template_and_is_charged_to_no_budget() -> None:
    job = disrupted(a_running_job(template=TEMPLATE), cordon())
    first, second = ready_pods(job)
    evicted = replace(second, terminating=True, evicted=True)
    crashed = replace(first, end=ended(exit_code=1))  # it lost its peer
    seen = observed(crashed, evicted, node_disruptions=(cordon(),), evictable=1)
    status = decided(job, seen)
    assert (status.assignment, status.phase) == (None, Phase.PENDING)
    assert status.reason == Reason.NODE_DISRUPTED
    assert status.queued_at == job.status.queued_at
    assert (status.restarts, status.budgets) == (0, None)
    assert status.last_incident is not None
    assert status.last_incident.fault_class is FaultClass.PREEMPTION
    released = with_status(job, status)
    assert is_queued(released)
    (deletion,) = planned(released, observed(first, evicted)).actions
    assert deletion == DeleteGenerations(generations=(1,))


def test_a_template_that_found_other_nodes_starts_there_as_a_whole() -> None:
    job = disrupted(a_running_job(template=TEMPLATE))
    assert job.status.disruption is not None
    assert job.status.disruption.movable is True
    status = evacuated(job, nodes=("node-a", "node-c"), positions=(1,), epoch=EPOCH, now=T0 + 20)
    after = members_of(status)
    assert [member.node for member in after] == ["node-a", "node-c"]
    assert [member.pod_generation for member in after] == [2, 2]
    assert (status.restarts, status.budgets) == (0, None)


def test_a_template_without_other_nodes_gets_its_grace_period_before_the_deadline() -> None:
    job = disrupted(a_running_job(template=TEMPLATE))
    seen = seen_on(job, reclaim(), evictable=1)
    leave = T0 + 130 - 40 - 10  # grace period and margin
    assert planned(job, seen, now=leave - 1) == JobPlan(requeue_at=leave)
    status = decided(job, seen, now=leave)
    assert (status.assignment, status.reason) == (None, Reason.NODE_DISRUPTED)
    assert status.queued_at == job.status.queued_at
    assert (status.restarts, status.budgets) == (0, None)


def test_a_notice_shorter_than_the_grace_period_ends_a_template_at_once() -> None:
    job = disrupted(a_running_job(template=TEMPLATE), reclaim(deadline=T0 + 25))
    assert decided(job, seen_on(job, reclaim(deadline=T0 + 25))).assignment is None


# --- evictions and losses ----------------------------------------------------------------------


def test_a_drain_that_evicts_a_member_costs_no_budget() -> None:
    job = saved(disrupted(a_running_job(), cordon()), cordon())
    first, second = ready_pods(job)
    evicted = replace(second, terminating=True, evicted=True)
    status = decided(job, observed(first, evicted, node_disruptions=(cordon(),), evictable=1))
    assert (lost_by(status), status.reason) == ([1], Reason.NODE_DISRUPTED)
    assert (status.restarts, status.budgets) == (0, None)
    assert "was evicted, for example by a drain of the node" in (status.message or "")


@pytest.mark.parametrize("announced", [reclaim(), cordon()])
@pytest.mark.parametrize("end", ["deleted", "terminated", "vanished", "node gone", "silent"])
def test_a_loss_on_a_node_whose_end_was_announced_costs_no_budget(
    announced: NodeDisruption, end: str
) -> None:
    job = disrupted(three_members(), replace(announced, node="b"))
    pods, rest = list(ready_pods(job)), {}
    match end:
        case "deleted":
            pods[1] = replace(pods[1], terminating=True)
        case "terminated":
            pods[1] = replace(pods[1], end=ended(exit_code=143, reason="NodeShutdown"))
        case "vanished":
            del pods[1]
        case "node gone":
            rest["gone_nodes"] = frozenset({"b"})
        case _:
            rest["silent"] = frozenset({pods[1].uid})
    status = decided(job, observed(*pods, node_disruptions=(replace(announced, node="b"),), **rest))
    assert lost_by(status) == [1]
    assert (status.restarts, status.budgets) == (0, None)


def test_a_loss_elsewhere_is_charged_and_takes_no_member_of_a_cordoned_node() -> None:
    job = disrupted(three_members(), cordon("b"))
    pods = list(ready_pods(job))
    pods[2] = replace(pods[2], terminating=True)
    status = decided(job, observed(*pods, node_disruptions=(cordon("b"),)))
    assert lost_by(status) == [2]
    assert [budget.fault_class for budget in status.budgets or ()] == [FaultClass.INFRASTRUCTURE]


def test_when_a_member_fails_meanwhile_members_that_have_to_leave_are_lost_too() -> None:
    job = disrupted(three_members(), reclaim("b"))
    pods = list(ready_pods(job))
    pods[2] = replace(pods[2], terminating=True)
    status = decided(job, observed(*pods, node_disruptions=(reclaim("b"),)))
    assert (lost_by(status), status.disruption) == ([1, 2], None)
