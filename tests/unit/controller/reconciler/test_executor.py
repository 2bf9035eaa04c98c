"""Which requests the actions of a plan become."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from drumline.controller.nodes.nodes import OVERDUE_SECONDS, NodeCache
from drumline.controller.reconciler.events_pace import LEAST_SECONDS, MOST_SECONDS
from drumline.controller.reconciler.executor import (
    Executor,
    GangRejected,
    RetryLater,
    StartRefused,
)
from drumline.controller.reconciler.job_memory import UNSEEN_SECONDS, JobMemory
from drumline.controller.reconciler.orphan_sweep import JobIdentity
from drumline.kube import codec
from drumline.kube.client import KubeClient
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.actions import (
    CreateMembers,
    DeleteGenerations,
    ReadPodEvents,
)
from drumline_api.podprofile import PodProfile
from tests.builders import T0, a_job, admitted, ready_pods
from tests.unit.controller.app.fake_api import FakeApi

JOB = admitted(a_job())
GPUS = PoolGpus(resource="nvidia.com/gpu")
FIRST, SECOND = ready_pods(JOB)
BY_NAME = f"DELETE /api/v1/namespaces/team/pods/{FIRST.name}"
AS_A_COLLECTION = "DELETE /api/v1/namespaces/team/pods"


@dataclass(kw_only=True)
class Desk:
    """An executor that writes to a fake API server, and what its cache shows."""

    api: FakeApi
    executor: Executor
    clock: list[float]
    answer_seconds: list[float]
    """How long the API server takes for each list."""
    behind: list[float]
    """By how much the wall clock was set back."""
    nodes: NodeCache
    pods: list[PodFacts] = field(default_factory=list[PodFacts])
    pools: dict[str, PoolGpus] = field(default_factory=dict[str, PoolGpus])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    api, pods, clock, answer_seconds = FakeApi(), list[PodFacts](), [T0], [0.0]
    behind = [0.0]
    pools: dict[str, PoolGpus] = {}
    nodes = NodeCache(clock=lambda: clock[0] - behind[0])
    async with api.serving() as credentials, KubeClient(credentials) as client:
        nothing = cast("Any", None)
        executor = Executor(
            client=client,
            agents=nothing,
            deliveries=nothing,
            pods=PodSettings(trainer_image="trainer:1", join_image="join:1"),
            signing_keys=SigningKeys(current=b"a key for tests that is long enough"),
            gpus_of=lambda name: pools.get(name, GPUS),
            shared=nothing,
            pods_of=lambda _: pods,
            clock=lambda: clock[0] - behind[0],
            is_stuck=nodes.is_stuck,
            monotonic=lambda: clock[0] + answer_seconds[0] * api.lists,
        )
        yield Desk(
            api=api,
            executor=executor,
            pods=pods,
            clock=clock,
            answer_seconds=answer_seconds,
            behind=behind,
            nodes=nodes,
            pools=pools,
        )


@pytest.mark.parametrize(
    ("shown", "request_line"),
    [
        ([FIRST], BY_NAME),
        ([FIRST, replace(SECOND, terminating=True)], BY_NAME),
        ([FIRST, replace(SECOND, generation=2)], BY_NAME),
        ([FIRST, SECOND], AS_A_COLLECTION),
        ([], AS_A_COLLECTION),
    ],
)
async def test_a_pod_alone_is_deleted_by_its_name_and_more_of_them_in_one_request(
    desk: Desk, shown: list[PodFacts], request_line: str
) -> None:
    desk.pods += shown
    await desk.executor.act(JOB, DeleteGenerations(generations=(1,)), JobMemory())
    assert desk.api.requests == [request_line]


@pytest.mark.parametrize("shown", [[FIRST], [FIRST, SECOND]])
async def test_a_deletion_that_the_cache_does_not_show_yet_is_asked_for_once(
    desk: Desk, shown: list[PodFacts]
) -> None:
    memory, action = JobMemory(), DeleteGenerations(generations=(1,))
    desk.pods += shown
    for _ in range(2):
        await desk.executor.act(JOB, action, memory)
    assert len(desk.api.requests) == 1
    late = replace(SECOND, uid="shown-only-now", name="late")
    desk.pods.append(late)
    await desk.executor.act(JOB, action, memory)
    assert desk.api.requests[1:] == [f"{AS_A_COLLECTION}/late"]
    desk.clock[0] += UNSEEN_SECONDS
    await desk.executor.act(JOB, action, memory)
    assert desk.api.requests[2:] == [AS_A_COLLECTION]


async def test_the_claims_of_a_pool_s_profile_are_looked_up_before_any_pod(desk: Desk) -> None:
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "models"}}]
    desk.pools["h100"] = replace(GPUS, profile=PodProfile.model_validate({"volumes": volumes}))
    with pytest.raises(StartRefused, match="models"):
        await desk.executor.act(JOB, CreateMembers(indices=(0, 1)), JobMemory())
    assert desk.api.requests == []


OWNER = {"kind": "TrainingJob", "name": JOB.name, "uid": JOB.uid, "controller": True}
OURS = {"labels": {"drumline.dev/job-uid": JOB.uid}, "ownerReferences": [OWNER]}


@pytest.mark.parametrize(
    ("holder", "outcome", "says"),
    [
        (
            {},
            GangRejected,
            f"pod {SECOND.name} already exists and does not belong to a TrainingJob",
        ),
        ({"labels": OURS["labels"]}, GangRejected, SECOND.name),
        ({"deletionTimestamp": "2023-11-14T22:13:20Z"}, RetryLater, "0.5"),
        (
            {"deletionTimestamp": "2023-11-14T22:10:00Z", "finalizers": ["example.com/keeps"]},
            GangRejected,
            rf"{SECOND.name} \(finalizer example.com/keeps\) was deleted, but it still exists",
        ),
        (OURS, RetryLater, "0.5"),
    ],
)
async def test_a_name_that_another_owners_pod_holds_rejects_the_gang_and_says_so(
    desk: Desk, holder: dict[str, Any], outcome: type[Exception], says: str
) -> None:
    """The job waits for a name of its own Pod, or of one that leaves in time."""
    metadata = {"namespace": "team", "name": SECOND.name, **holder}
    desk.api.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": {}})
    memory = JobMemory()
    memory.children_generation = memory.claims_generation = JOB.status.generation or 0
    with pytest.raises(outcome, match=says):
        await desk.executor.act(JOB, CreateMembers(indices=(0, 1)), memory)
    assert [pod["metadata"]["name"] for pod in desk.api.objects("pods")] == [
        SECOND.name,
        FIRST.name,
    ]


async def test_a_pod_leaves_in_time_by_our_clock_although_that_of_the_api_server_is_behind(
    desk: Desk,
) -> None:
    place: dict[str, Any] = {
        "spec": {"nodeName": "node-0", "containers": []},
        "status": {"phase": "Running"},
    }
    pod: dict[str, Any] = {"metadata": {"namespace": "team", "name": SECOND.name, **OURS}, **place}
    pod["metadata"]["uid"] = "of the job before"
    runs = codec.pod(json.dumps(pod).encode())
    desk.nodes.on_pod(None, runs)
    pod["metadata"] |= {"deletionTimestamp": timestamp(T0 - 3600), "deletionGracePeriodSeconds": 30}
    desk.nodes.on_pod(runs, codec.pod(json.dumps(pod).encode()))
    desk.api.put("pods", pod)
    memory = JobMemory()
    memory.children_generation = memory.claims_generation = JOB.status.generation or 0
    with pytest.raises(RetryLater):
        await desk.executor.act(JOB, CreateMembers(indices=(0, 1)), memory)
    desk.clock[0] += 30 + OVERDUE_SECONDS
    with pytest.raises(GangRejected):
        await desk.executor.act(JOB, CreateMembers(indices=(0, 1)), memory)


@pytest.mark.parametrize("exists", [True, False])
async def test_pods_of_a_job_that_left_the_cache_are_deleted_only_if_it_is_gone(
    desk: Desk, exists: bool
) -> None:
    """It leaves the cache, too, while its namespace may not be read."""
    metadata = {"namespace": "team", "name": FIRST.name, "labels": OURS["labels"]}
    desk.api.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": {}})
    uid = JOB.uid if exists else "of another job of this name"
    desk.api.put("trainingjobs", {"metadata": {"namespace": "team", "name": JOB.name, "uid": uid}})
    await desk.executor.delete_orphans(JobIdentity("team", JOB.name, JOB.uid))
    assert len(desk.api.objects("pods")) == exists


@pytest.mark.parametrize(
    ("answer_seconds", "pause"), [(0.0, LEAST_SECONDS), (0.1, 10 * 0.1), (2.0, MOST_SECONDS)]
)
async def test_events_of_pods_are_read_the_less_often_the_longer_a_read_takes(
    desk: Desk, answer_seconds: float, pause: float
) -> None:
    desk.answer_seconds[0] = answer_seconds
    action = ReadPodEvents(pods=(FIRST,))
    waits: list[float] = []
    for number in range(4):
        memory = JobMemory()
        while not memory.pod_events:
            with pytest.raises(RetryLater) as later:
                await desk.executor.act(JOB, action, memory)
            desk.pods[:] = [FIRST]
            if not memory.pod_events:
                waits.append(later.value.seconds)
                desk.clock[0] += later.value.seconds
        assert desk.api.lists == number + 1
    assert waits[-1] == pytest.approx(pause - answer_seconds, abs=1e-3)


async def test_events_are_read_at_once_after_the_clock_was_set_back(desk: Desk) -> None:
    action = ReadPodEvents(pods=(FIRST,))
    waiting = JobMemory()
    for memory in (JobMemory(), waiting):
        with pytest.raises(RetryLater):
            await desk.executor.act(JOB, action, memory)
    desk.behind[0] = 3600.0
    with pytest.raises(RetryLater) as later:
        await desk.executor.act(JOB, action, waiting)
    assert later.value.seconds <= 2 * LEAST_SECONDS
    desk.clock[0] += later.value.seconds
    with pytest.raises(RetryLater):
        await desk.executor.act(JOB, action, waiting)
    assert waiting.pod_events[FIRST.uid].read_at < T0
