"""A generation starts: which pods are created, when the record is pushed, and the deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.plan.actions import (
    CreateMembers,
    DeleteGenerations,
    JobPlan,
    ProtectMembers,
    PushRecord,
)
from drumline.lifecycle.plan.deadlines import restart_backoff_seconds
from drumline_api.conditions import ConditionType, Phase, Reason
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
from tests.unit.lifecycle.planning import planned

TEMPLATE = {"image": "any:1", "command": ["true"]}


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


def test_the_record_is_pushed_when_every_agent_is_reachable() -> None:
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


def test_template_pods_get_the_record_while_their_join_container_runs() -> None:
    job = admitted(a_job(template=TEMPLATE))
    pods = [a_pod(job, i, ip=f"10.0.0.{i}", joining=True) for i in (0, 1)]
    (push,) = planned(job, observed(*pods)).actions
    assert isinstance(push, PushRecord)


def test_the_job_runs_once_its_record_is_acknowledged() -> None:
    job = admitted(a_job())
    acknowledged = observed(*ready_pods(job), acknowledged_generation=1)
    assert planned(job, acknowledged).actions == (ProtectMembers(),)
    result = planned(job, replace(acknowledged, evictable=0))
    assert result.status is not None
    assert result.status.phase is Phase.RUNNING
    assert result.status.ready == "2/2"
    assert is_true(result.status, ConditionType.RUNNING)


def test_the_first_pod_that_runs_pins_the_image_of_all_later_pods() -> None:
    job = admitted(a_job(template={"image": "team/a:1"}), image="team/a:1")
    digest = "sha256:" + "1" * 64
    first, second = ready_pods(job)
    pods = (first, replace(second, image_id=f"hub.example.com/team/a@{digest}"))
    status = planned(job, observed(*pods, evictable=0)).status
    assert status is not None
    assert (status.phase, status.image) == (Phase.RUNNING, f"team/a:1@{digest}")
    job = with_status(job, status)
    again = with_status(job, transitions.requeued(job, reason=Reason.POD_LOST, message="", now=T0))
    settings = PodSettings(trainer_image="trainer:2", join_image="join:1")
    assert image_of(again, settings) == f"team/a:1@{digest}"


def test_an_old_generations_acknowledgement_does_not_start_the_next_generation() -> None:
    job = admitted(running(admitted(a_job())))
    assert job.status.generation == 2
    (push,) = planned(job, observed(*ready_pods(job), acknowledged_generation=1)).actions
    assert isinstance(push, PushRecord)


def test_own_template_job_runs_when_every_container_does() -> None:
    job = admitted(a_job(template=TEMPLATE))
    result = planned(job, observed(*ready_pods(job), evictable=0))
    assert result.status is not None
    assert result.status.phase is Phase.RUNNING


def test_the_next_generation_waits_until_orphan_pods_released_their_gpus() -> None:
    job = running(admitted(a_job(template=TEMPLATE)))
    failed = [a_pod(job, 0, ready=True, ip="1.1.1.1"), a_pod(job, 1, ready=True, ip="1.1.1.2")]
    ill = [failed[0], a_pod(job, 1, end=ended(exit_code=1))]
    job = with_status(job, planned(job, observed(*ill)).status)
    assert planned(job, observed(*failed)).actions == (DeleteGenerations(generations=(1,)),)
    leaving = a_pod(job, 0, generation=1, terminating=True)
    assert planned(job, observed(leaving)).actions == (CreateMembers(indices=(1,)),)
    assert planned(job, observed()).actions == (CreateMembers(indices=(0, 1)),)


def test_a_template_starts_elsewhere_once_its_old_pods_have_ended_or_had_their_grace() -> None:
    job = running(admitted(a_job(template={**TEMPLATE, "terminationGracePeriodSeconds": 60})))
    released = transitions.requeued(job, reason=Reason.NODE_DISRUPTED, message="", now=T0)
    job = admitted(with_status(job, released), nodes=("node-c", "node-d"))
    old = a_pod(job, 0, generation=1, node="node-a")
    deleted = planned(job, observed(old))
    assert deleted.actions == (DeleteGenerations(generations=(1,)),)
    assert deleted.requeue_at == T0 + 61
    saving = replace(old, terminating=True, terminates_by=T0 + 40)
    assert planned(job, observed(saving)) == JobPlan(requeue_at=T0 + 40)
    for over in (observed(), observed(replace(saving, end=ended(exit_code=143)))):
        assert CreateMembers(indices=(0, 1)) in planned(job, over).actions
    # a pod on a node that is dead never ends
    late = planned(job, observed(saving), now=T0 + 40)
    assert late.actions == (CreateMembers(indices=(0, 1)),)


def test_restarts_back_off_but_the_first_does_not() -> None:
    assert [restart_backoff_seconds(n) for n in (1, 2, 3, 4, 20)] == [0, 5, 10, 20, 300]
    job = running(admitted(a_job()))
    for _ in range(2):
        pods = [a_pod(job, 0, end=ended(exit_code=1)), a_pod(job, 1, end=ended(exit_code=1))]
        job = with_status(job, planned(job, observed(*pods), now=T0).status)
    assert planned(job, now=T0 + 4) == JobPlan(requeue_at=T0 + 5)
    assert planned(job, now=T0 + 5).actions == (CreateMembers(indices=(0, 1)),)


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
    assert ": 1 pod not created" in (status.message or "")
    assert status.failed_starts == 1
    last = with_status(job, job.status.model_copy(update={"failed_starts": 4}))
    failed = planned(last, seen, now=T0 + 60).status
    assert failed is not None
    assert (failed.phase, failed.reason) == (Phase.FAILED, Reason.START_FAILED)


def test_a_sidecar_of_an_earlier_generation_still_holds_its_node() -> None:
    job = admitted(running(admitted(a_job(template=TEMPLATE))))
    lingering = a_pod(job, 0, generation=1, end=ended(exit_code=1), lingers=True, terminating=True)
    assert planned(job, observed(lingering)).actions == (CreateMembers(indices=(1,)),)
    over = replace(lingering, lingers=False)
    assert planned(job, observed(over)).actions == (CreateMembers(indices=(0, 1)),)


def test_places_are_not_held_for_ever_while_an_earlier_generation_does_not_go() -> None:
    job = admitted(running(admitted(a_job(startDeadlineSeconds=60))))
    stuck = a_pod(job, 0, generation=1, terminating=True)
    other = ready_pods(job)[1]
    assert planned(job, observed(stuck, other)) == JobPlan(requeue_at=T0 + 60)
    status = planned(job, observed(stuck, other), now=T0 + 60).status
    assert status is not None
    assert (status.assignment, status.failed_starts) == (None, None)
    assert not missing(status.message or "", "llama-0-g1")


def test_a_member_that_is_through_shows_that_the_record_was_known() -> None:
    job = admitted(a_job())
    pods = [a_pod(job, 0, end=ended()), ready_pods(job)[1]]
    status = planned(job, observed(*pods, evictable=0)).status
    assert status is not None
    assert status.phase is Phase.RUNNING


def test_a_pod_of_the_last_generation_that_was_not_shown_yet_is_waited_for() -> None:
    job = admitted(running(admitted(a_job())))
    unshown = observed(expected_pods=frozenset({"llama-1-g1"}))
    assert planned(job, unshown) == JobPlan(requeue_at=T0 + 600)
    assert planned(job, observed()).actions == (CreateMembers(indices=(0, 1)),)


def test_agents_that_know_other_members_of_a_generation_get_the_next_generation() -> None:
    """The operator lost its memory of the push and created a pod again."""
    job = admitted(a_job())
    seen = observed(*ready_pods(job), contradicted_generation=1)
    status = planned(job, seen).status
    assert status is not None
    assert (status.generation, status.reason) == (2, Reason.MEMBERS_CHANGED)
    assert [member.pod_generation for member in members_of(status)] == [1, 1]
    assert (status.restarts, status.budgets) == (0, None)
    job = with_status(job, status)
    (push,) = planned(job, observed(*ready_pods(job))).actions
    assert isinstance(push, PushRecord)
    assert push.record.generation == 2


def test_a_gang_with_a_template_then_restarts_as_a_whole() -> None:
    job = admitted(a_job(template=TEMPLATE))
    pods = [a_pod(job, i, ip=f"10.0.0.{i}", joining=True) for i in (0, 1)]
    status = planned(job, observed(*pods, contradicted_generation=1)).status
    assert status is not None
    assert [member.pod_generation for member in members_of(status)] == [2, 2]


def test_a_gang_placed_by_a_leader_whose_clock_is_ahead_is_created_at_once() -> None:
    """Its GPUs are held already, and its generation would begin minutes from now."""
    job = admitted(a_job())
    assert planned(job, now=T0 - 600).actions == (CreateMembers(indices=(0, 1)),)
