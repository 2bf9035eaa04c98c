"""An elastic gang shrinks to what it has, and grows while it trains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.observed import NodeDisruption, PodEvents
from drumline.lifecycle.plan.actions import (
    CreateMembers,
    DeleteGenerations,
    JobPlan,
    Notify,
    ProtectMembers,
    PushRecord,
)
from drumline.lifecycle.plan.elastic import growth_notice_id
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.jobstatus import CheckpointStatus, TrainingJobStatus
from drumline_contract import Notice, NoticeAnswer
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
from tests.unit.lifecycle import planning

SPEC: dict[str, Any] = {
    "nodes": 4,
    "minNodes": 1,
    "trainer": {"globalBatchSize": 24},
    "checkpoint": {"claimName": "shared"},
}
DEADLINE = T0 + 605


def a_gang(*nodes: str) -> Job:
    return running(admitted(a_job(**SPEC), nodes=nodes))


def a_growing_gang() -> Job:
    job = a_gang("a", "b")
    status = transitions.resized(job, kept=[0, 1], added=["c", "d"], epoch=EPOCH, now=T0 + 5)
    return with_status(job, status)


planned = partial(planning.planned, now=T0 + 6)
decided = partial(planning.decided, now=T0 + 6)


def indices(status: TrainingJobStatus) -> list[int]:
    return [member.index for member in members_of(status)]


def test_a_gang_starts_with_as_many_nodes_as_there_are() -> None:
    job = admitted(a_job(**SPEC), nodes=("a", "b", "c"))
    assert (job.size, job.status.ready) == (3, "0/3")
    assert planned(job, observed()).actions == (CreateMembers(indices=(0, 1, 2)),)
    acknowledged = observed(*ready_pods(job), acknowledged_generation=1, evictable=0)
    assert decided(job, acknowledged).ready == "3/3"


def test_a_size_that_is_no_longer_legal_gives_its_places_back() -> None:
    job = admitted(a_job(**SPEC), nodes=("a", "b", "c"))
    job = replace(job, spec=job.spec.model_copy(update={"min_nodes": 4}))
    assert decided(job, observed()).reason == Reason.RESIZED


def test_a_gang_that_shrank_goes_on_with_the_members_it_has() -> None:
    job = a_gang("a", "b", "c", "d")
    gone = observed(*[pod for pod in ready_pods(job) if pod.index != 1])
    job = with_status(job, decided(job, gone))
    status = transitions.resized(job, kept=[0, 2, 3], added=(), epoch=EPOCH, now=T0 + 7)
    job = with_status(job, status)
    assert (status.reason, status.message) == (Reason.SHRUNK, "from 4 to 3 of 4 nodes")
    assert (indices(status), status.generation) == ([0, 2, 3], 2)
    (push,) = planned(job, observed(*ready_pods(job))).actions
    assert isinstance(push, PushRecord)
    assert [push.record.first_rank(index) for index in (0, 2, 3)] == [0, 2, 4]
    acknowledged = observed(*ready_pods(job), acknowledged_generation=2, evictable=0)
    assert decided(job, acknowledged).phase is Phase.RUNNING


def test_while_new_members_start_the_present_members_train() -> None:
    job = a_growing_gang()
    assert (job.status.phase, job.status.reason) == (Phase.RUNNING, Reason.GROWS)
    assert is_true(job.status, ConditionType.RUNNING)
    assert not is_true(job.status, ConditionType.RECOVERING)
    old = ready_pods(job)[:2]
    result = planned(job, observed(*old))
    assert result == JobPlan(actions=(CreateMembers(indices=(2, 3)),), requeue_at=DEADLINE)
    new = [a_pod(job, 2), a_pod(job, 3)]
    assert planned(job, observed(*old, *new)) == JobPlan(requeue_at=T0 + 15)


def test_members_save_when_new_members_are_ready_and_then_get_the_record() -> None:
    job = a_growing_gang()
    pods = ready_pods(job)
    notice = Notice(job_uid=job.uid, id=growth_notice_id(job), deadline=DEADLINE, leave=False)
    assert planned(job, observed(*pods)).actions == (Notify(notice=notice),)
    assert planned(job, observed(*pods, notified=notice.id)) == JobPlan(requeue_at=DEADLINE)
    under_way = NoticeAnswer(id=notice.id)
    assert planned(job, observed(*pods, notice=under_way)) == JobPlan(requeue_at=DEADLINE)
    saved = observed(*pods, notice=replace(under_way, step=42, digest="abc"))
    job = with_status(job, decided(job, saved))
    assert job.status.checkpoint == CheckpointStatus(step=42, digest="abc")
    (push,) = planned(job, saved).actions
    assert isinstance(push, PushRecord)
    assert (push.record.generation, push.record.restore_step) == (2, 42)
    assert [member.index for member in push.record.members] == [0, 1, 2, 3]
    acknowledged = replace(saved, acknowledged_generation=2)
    assert planned(job, acknowledged).actions == (ProtectMembers(),)
    status = decided(job, replace(acknowledged, evictable=0))
    assert status.assignment is not None
    assert (status.assignment.joining, status.ready) == (None, "4/4")


@pytest.mark.parametrize("why", ["failed", "late", "unsaved"])
def test_growing_that_comes_to_nothing_costs_nothing(why: str) -> None:
    job = a_growing_gang()
    pods, now = list(ready_pods(job)), T0 + 6
    if why == "failed":
        pods[3] = a_pod(job, 3, end=ended(exit_code=None, reason="OutOfcpu"))
    if why == "late":
        pods[3], now = a_pod(job, 3), DEADLINE
    seen = observed(*pods, pod_events={pods[3].uid: PodEvents(read_at=DEADLINE)})
    if why == "unsaved":
        answer = NoticeAnswer(id=growth_notice_id(job), error="disk full")
        seen = observed(*pods, notice=answer)
    status = decided(job, seen, now=now)
    assert (indices(status), status.phase, status.restarts) == ([0, 1], Phase.RUNNING, 0)
    assert is_true(status, ConditionType.RUNNING)
    job = with_status(job, status)
    result = planned(job, seen, now=now)
    assert result.status is None
    assert DeleteGenerations(generations=(2,)) in result.actions


@pytest.mark.parametrize("node", ["a", "d"])
def test_the_announced_end_of_a_node_comes_before_growing(node: str) -> None:
    job = a_growing_gang()
    threat = NodeDisruption(
        node=node, kind=DisruptionKind.MAINTENANCE, source="test", deadline=T0 + 20
    )
    old = ready_pods(job)[:2]
    status = decided(job, observed(*old, node_disruptions=(threat,)))
    assert (indices(status), status.phase, status.restarts) == ([0, 1], Phase.RUNNING, 0)
    assert f"node {node} is about to go" in (status.message or "")
    if node == "a":
        status = decided(with_status(job, status), observed(*old, node_disruptions=(threat,)))
        assert status.disruption is not None
        assert status.disruption.indices == [0]


def test_a_gang_that_acknowledged_its_new_members_finishes_growing_first() -> None:
    job = a_growing_gang()
    threat = NodeDisruption(node="a", kind=DisruptionKind.MAINTENANCE, source="test")
    acknowledged = observed(
        *ready_pods(job), node_disruptions=(threat,), acknowledged_generation=2, evictable=0
    )
    status = decided(job, acknowledged)
    assert (indices(status), status.disruption) == ([0, 1, 2, 3], None)
    status = decided(with_status(job, status), acknowledged)
    assert status.disruption is not None


def test_a_lost_training_member_ends_the_growth_and_the_new_members_stay() -> None:
    job = a_growing_gang()
    pods = list(ready_pods(job))
    pods[0] = replace(pods[0], terminating=True)
    status = decided(job, observed(*pods))
    assert status.assignment is not None
    assert (status.assignment.lost, status.assignment.joining) == ([0], None)
    assert status.phase is Phase.RECOVERING


def test_new_members_take_the_indices_that_are_free() -> None:
    job = a_gang("a", "b", "c", "d")
    gone = observed(*[pod for pod in ready_pods(job) if pod.index != 1])
    job = with_status(job, decided(job, gone))
    status = transitions.resized(job, kept=[0, 2, 3], added=(), epoch=EPOCH, now=T0 + 7)
    job = running(with_status(job, status))
    status = transitions.resized(job, kept=[0, 1, 2], added=["e"], epoch=EPOCH, now=T0 + 9)
    members = [(member.index, member.node, member.pod_generation) for member in members_of(status)]
    assert members == [(0, "a", 1), (1, "e", 3), (2, "c", 1), (3, "d", 1)]


SCRIPT: dict[str, Any] = {
    "nodes": 4,
    "minNodes": 1,
    "template": {"image": "mine:1", "command": ["train"], "launch": "PerGpu"},
}


def a_growing_script() -> Job:
    job = running(admitted(a_job(**SCRIPT), nodes=("a", "b")))
    status = transitions.resized(job, kept=[0, 1], added=["c", "d"], epoch=EPOCH, now=T0 + 5)
    return with_status(job, status)


def test_a_script_that_cannot_be_asked_starts_again_once_the_new_members_are_ready() -> None:
    job = a_growing_script()
    pods = ready_pods(job)
    assert planned(job, observed(*pods[:2])).actions == (CreateMembers(indices=(2, 3)),)
    (push,) = planned(job, observed(*pods)).actions
    assert isinstance(push, PushRecord)
    assert [member.index for member in push.record.members] == [0, 1, 2, 3]


def test_a_script_that_acknowledges_saves_is_asked_before_it_grows() -> None:
    job = a_growing_script()
    seen = replace(observed(*ready_pods(job)), acknowledges_saves=True)
    notice = Notice(job_uid=job.uid, id=growth_notice_id(job), deadline=DEADLINE, leave=False)
    assert planned(job, seen).actions == (Notify(notice=notice),)
    saved = replace(seen, notice=NoticeAnswer(id=notice.id, step=42))
    job = with_status(job, decided(job, saved))
    (push,) = planned(job, saved).actions
    assert isinstance(push, PushRecord)
    assert (push.record.restore_step, push.record.previous_ranks) == (42, 4)


def recorded(job: Job) -> int | None:
    """What the record of its current generation says of the ranks before."""
    (push,) = planned(job, observed(*ready_pods(job))).actions
    assert isinstance(push, PushRecord)
    return push.record.previous_ranks


def test_the_record_says_how_many_ranks_trained_before_also_after_a_suspension() -> None:
    job = admitted(a_job(**SCRIPT), nodes=("a", "b", "c", "d"))
    assert recorded(job) is None
    job = running(job)
    assert job.status.ranks == 8
    job = with_status(job, transitions.suspended(job, now=T0 + 7))
    job = with_status(job, transitions.resumed(job, now=T0 + 8))
    job = admitted(job, nodes=("a", "b"))
    assert (recorded(job), job.status.previous_ranks) == (8, 8)


def test_a_generation_that_never_ran_is_not_the_one_before() -> None:
    job = running(admitted(a_job(**SCRIPT), nodes=("a", "b")))
    job = with_status(
        job, transitions.members_lost(job, indices=[1], reason=Reason.POD_LOST, message="", now=T0)
    )
    job = with_status(job, transitions.resized(job, kept=[0], added=(), epoch=EPOCH, now=T0 + 1))
    assert recorded(job) == 4
    job = with_status(
        job,
        transitions.restarted(
            job, indices=[0], reason=Reason.POD_FAILED, message="", epoch=EPOCH, now=T0 + 2
        ),
    )
    assert recorded(job) == 4
