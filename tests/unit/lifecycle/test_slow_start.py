"""Starts that last: what status says, when GPUs are given back, and when the job fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.children import child_name
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed, PodEvent, PodEvents
from drumline.lifecycle.plan.actions import JobPlan, PushRecord, ReadPodEvents, RestoreChildren
from drumline.lifecycle.plan.slow_start import MAX_NAMED, MAX_PULL_SECONDS
from drumline_api.conditions import Phase, Reason
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

BAD_MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "kyes" not found'
NO_IMAGE = "ErrImagePull: team/trian:1: not found"
TEMPLATE = {"image": "any:1", "command": ["true"]}


def event(reason: str, message: str = "", *, at: float = T0 + 5) -> PodEvent:
    return PodEvent(reason=reason, message=message, at=at, warning=reason.startswith("Failed"))


def half_up(
    job: Job, *events: PodEvent, read_at: float | None = None, waiting: str = ""
) -> Observed:
    """Pod 0 is up and pod 1 is not; its events were read at `read_at`, if at all."""
    late = a_pod(job, 1, waiting=waiting)
    known = {} if read_at is None else {late.uid: PodEvents(read_at=read_at, events=events)}
    return observed(ready_pods(job)[0], late, pod_events=known)


def test_a_slow_start_says_what_it_waits_for() -> None:
    job = admitted(a_job())
    seen = half_up(job, waiting="ErrImagePull: i/o timeout")
    assert planned(job, seen, now=T0 + 9).status is None
    status = planned(job, seen, now=T0 + 10).status
    assert status is not None
    assert (status.reason, status.ready) == (Reason.PULLING_IMAGES, "1/2")
    assert "llama-1-g1 on node-b: ErrImagePull: i/o timeout" in (status.message or "")
    again = with_status(job, status)
    assert planned(again, seen, now=T0 + 20).status is None
    progressed = replace(half_up(job, read_at=T0 + 20), refresh_due=False)
    assert planned(again, progressed, now=T0 + 20).status is None


def test_events_are_read_of_pods_whose_status_says_nothing() -> None:
    job = admitted(a_job())
    silent = half_up(job, waiting="ContainerCreating")
    assert planned(job, silent, now=T0 + 9) == JobPlan(requeue_at=T0 + 10)
    late = silent.pods[1]
    looking = planned(job, silent, now=T0 + 10)
    assert looking == JobPlan(actions=(ReadPodEvents(pods=(late,)),))
    telling = half_up(job, waiting="ErrImagePull: i/o timeout")
    assert planned(job, telling, now=T0 + 10).actions == ()


def test_events_are_read_ever_more_rarely_and_before_the_end() -> None:
    job = admitted(a_job(startDeadlineSeconds=100))
    looks: list[float] = []
    read_at: float | None = None
    for second in range(100 + 1):
        now = T0 + second
        seen = half_up(job, read_at=read_at)
        status = planned(job, seen, now=now).status
        job = with_status(job, status) if status is not None else job
        if planned(job, seen, now=now).actions:
            looks.append(second)
            read_at = now
    assert looks == [10, 20, 40, 80, 100]
    status = planned(job, half_up(job, read_at=T0 + 100), now=T0 + 100).status
    assert status is not None
    assert status.reason == Reason.START_DEADLINE_EXCEEDED


def test_an_agent_that_takes_no_record_is_named() -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    status = planned(job, observed(*ready_pods(job)), now=T0 + 60).status
    assert status is not None
    assert status.reason == Reason.START_DEADLINE_EXCEEDED
    assert not missing(status.message or "", "llama-0-g1")


def test_of_a_large_gang_few_pods_are_looked_at() -> None:
    nodes = tuple(f"node-{number}" for number in range(8))
    job = admitted(a_job(nodes=8), nodes=nodes)
    seen = observed(*(a_pod(job, index) for index in range(8)))
    (looking,) = planned(job, seen, now=T0 + 10).actions
    assert isinstance(looking, ReadPodEvents)
    assert len(looking.pods) == MAX_NAMED
    known = {
        a_pod(job, 5).uid: PodEvents(read_at=T0 + 9, events=(event("FailedMount", BAD_MOUNT),))
    }
    status = planned(job, replace(seen, pod_events=known), now=T0 + 30).status
    assert status is None  # pods 0 to 2 have not been looked at


def test_a_silent_start_is_reported_later() -> None:
    job = admitted(a_job())
    seen = half_up(job, read_at=T0 + 20)
    assert planned(job, seen, now=T0 + 20) == JobPlan(requeue_at=T0 + 30)
    status = planned(job, seen, now=T0 + 30).status
    assert status is not None
    assert (status.reason, status.ready) == (Reason.WAITING_FOR_AGENTS, "1/2")
    assert not missing(status.message or "", "llama-1-g1")


def test_a_mount_that_fails_is_shown_in_the_kubelets_words() -> None:
    job = admitted(a_job())
    seen = half_up(job, event("FailedMount", BAD_MOUNT), read_at=T0 + 10)
    status = planned(job, seen, now=T0 + 10).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.STARTING, Reason.START_BLOCKED)
    assert not missing(
        status.message,
        "1 of 2 pods",
        "llama-1-g1 on node-b",
        "FailedMount",
        BAD_MOUNT,
        "Secret kyes",
    )


def test_a_blocked_start_gives_its_gpus_back_and_counts() -> None:
    job = admitted(a_job())
    seen = half_up(job, event("FailedMount", BAD_MOUNT), read_at=T0 + 30)
    status = planned(job, seen, now=T0 + 30).status
    assert status is not None
    assert (status.assignment, status.phase, status.reason, status.failed_starts) == (
        None,
        Phase.PENDING,
        Reason.START_BLOCKED,
        1,
    )
    assert BAD_MOUNT in (status.incident or "")


def test_a_blocked_start_is_looked_at_again_before_it_is_given_up() -> None:
    job = admitted(a_job())
    seen = half_up(job, event("FailedMount", BAD_MOUNT), read_at=T0 + 20)
    (looking,) = planned(job, seen, now=T0 + 30).actions
    assert isinstance(looking, ReadPodEvents)
    healed = half_up(
        job, event("FailedMount", BAD_MOUNT), event("Pulling", at=T0 + 29), read_at=T0 + 30
    )
    assert planned(job, healed, now=T0 + 30).status is not None
    status = planned(job, healed, now=T0 + 30).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.STARTING, Reason.PULLING_IMAGES)


def test_an_image_that_does_not_exist_is_not_waited_for() -> None:
    job = admitted(a_job(template=TEMPLATE, nodes=1), nodes=("node-a",))
    seen = observed(a_pod(job, 0, waiting=NO_IMAGE))
    assert planned(job, seen, now=T0 + 29).status is not None
    status = planned(job, seen, now=T0 + 30).status
    assert status is not None
    assert status.reason == Reason.START_BLOCKED
    assert "set imagePullSecrets" in (status.incident or "")


def test_the_last_start_that_may_fail_fails_the_job_with_the_remedy() -> None:
    job = a_job(recovery={"maxFailedStarts": 2})
    for count in (1, 2):
        job = admitted(job, at=T0)
        status = planned(job, half_up(job, waiting=NO_IMAGE), now=T0 + 30).status
        assert status is not None
        assert status.failed_starts == count
        job = with_status(job, status)
    assert (job.status.phase, job.status.reason) == (Phase.FAILED, Reason.START_FAILED)
    message = job.status.message or ""
    assert NO_IMAGE in message
    assert not missing(message, "2 of 2", "recovery.maxFailedStarts")
    assert not missing(message, "imagePullSecrets")


def test_a_start_that_succeeds_and_a_suspension_begin_the_count_anew() -> None:
    job = admitted(a_job())
    status = planned(job, half_up(job, waiting=NO_IMAGE), now=T0 + 30).status
    failed = with_status(job, status)
    assert running(admitted(failed)).status.failed_starts is None
    assert transitions.suspended(failed, now=T0 + 40).failed_starts is None
    again = with_status(failed, transitions.waiting(failed, reason="x", message="", now=T0 + 31))
    assert again.status.failed_starts == 1


def test_the_start_deadline_requeues_the_job_names_late_pods_and_counts() -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    seen = half_up(job, waiting="ImagePullBackOff: i/o timeout")
    status = planned(job, seen, now=T0 + 60).status
    assert status is not None
    assert (status.assignment, status.reason) == (None, Reason.START_DEADLINE_EXCEEDED)
    assert "llama-1-g1 on node-b: ImagePullBackOff: i/o timeout" in (status.message or "")
    assert status.failed_starts == 1


def test_a_start_deadline_is_not_slept_through() -> None:
    job = admitted(a_job(startDeadlineSeconds=20))
    assert planned(job, half_up(job, read_at=T0 + 12), now=T0 + 12) == JobPlan(requeue_at=T0 + 20)


def test_image_pulls_do_not_count_against_the_start_deadline() -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    pulling = half_up(job, event("Pulling", at=T0 + 1), read_at=T0 + 60)
    result = planned(job, pulling, now=T0 + 60)
    assert result.status is not None
    assert (result.status.phase, result.status.reason) == (Phase.STARTING, Reason.PULLING_IMAGES)
    pulled = event("Pulled", at=T0 + 100)
    done = half_up(job, event("Pulling", at=T0 + 1), pulled, read_at=T0 + 150)
    job = with_status(job, result.status)
    waits = planned(job, done, now=T0 + 150)
    assert waits.status is not None
    assert waits.status.phase is Phase.STARTING
    late = half_up(job, event("Pulling", at=T0 + 1), pulled, read_at=T0 + 160)
    status = planned(job, late, now=T0 + 160).status
    assert status is not None
    assert status.reason == Reason.START_DEADLINE_EXCEEDED


def test_a_pod_that_came_up_after_a_long_pull_gets_its_record() -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    first, second = ready_pods(job)
    events = {second.uid: PodEvents(read_at=T0 + 100, events=(event("Pulling"),))}
    (push,) = planned(job, observed(first, second, pod_events=events), now=T0 + 110).actions
    assert isinstance(push, PushRecord)


def test_a_pull_does_not_hold_gpus_for_ever() -> None:
    job = admitted(a_job(startDeadlineSeconds=60))
    end = T0 + MAX_PULL_SECONDS + 60
    pulling = half_up(job, event("Pulling", at=T0 + 1), read_at=end)
    status = planned(job, pulling, now=end).status
    assert status is not None
    assert status.reason == Reason.START_DEADLINE_EXCEEDED


def test_the_jobs_own_secret_is_created_again() -> None:
    job = admitted(a_job())
    text = f'MountVolume.SetUp failed for volume "token" : secret "{child_name(job)}" not found'
    seen = half_up(job, event("FailedMount", text), read_at=T0 + 10)
    assert planned(job, seen, now=T0 + 10).actions == (RestoreChildren(),)
    late = half_up(job, event("FailedMount", text), read_at=T0 + 600)
    status = planned(job, late, now=T0 + 600).status
    assert status is not None
    assert status.assignment is None


def test_a_slow_recovery_stays_a_recovery() -> None:
    job = running(admitted(a_job()))
    job = with_status(job, planned(job, observed(*ready_pods(job)[:1]), now=T0 + 1).status)
    nodes = ["node-a", "node-c"]
    status = transitions.members_replaced(job, nodes=nodes, replaced=[1], epoch=EPOCH, now=T0)
    job = with_status(job, status)
    late = planned(job, half_up(job, waiting="ErrImagePull: i/o timeout"), now=T0 + 10).status
    assert late is not None
    assert (late.phase, late.reason) == (Phase.RECOVERING, Reason.PULLING_IMAGES)


def refused(reason: str) -> dict[str, Any]:
    return {"end": ended(exit_code=None, reason=reason, message="no")}


def test_refusals_count_that_may_come_again_on_the_next_node() -> None:
    job = admitted(a_job(template=TEMPLATE, recovery={"maxFailedStarts": 2}))
    for reason, counts in (
        ("OutOfcpu", None),
        ("NodeShutdown", None),
        ("UnexpectedAdmissionError", 1),
        ("TopologyAffinityError", 1),
    ):
        seen = observed(a_pod(job, 0), a_pod(job, 1, **refused(reason)))
        status = planned(job, seen, now=T0 + 1).status
        assert status is not None
        assert (status.phase, status.failed_starts) == (Phase.PENDING, counts)
    again = admitted(with_status(job, status))
    seen = observed(a_pod(again, 0), a_pod(again, 1, **refused("UnexpectedAdmissionError")))
    status = planned(again, seen, now=T0 + 1).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.START_FAILED)
    assert "UnexpectedAdmissionError: no" in (status.message or "")


def test_a_gang_that_has_trained_does_not_fail_by_refusals_of_replacements() -> None:
    job = running(admitted(a_job(recovery={"maxFailedStarts": 1})))
    pod = a_pod(job, 1, **refused("UnexpectedAdmissionError"))
    status = planned(job, observed(ready_pods(job)[0], pod), now=T0 + 1).status
    assert status is not None
    assert (status.phase, status.failed_starts) == (Phase.RECOVERING, None)
