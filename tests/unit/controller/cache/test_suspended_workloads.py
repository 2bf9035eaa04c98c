"""Jobs and JobSets that wait: admitted whole, charged until each pod is, and nobody else's pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.api.gpupool import GpuPoolSpec
from drumline.controller.cache.cluster import ClusterCache
from drumline.controller.cache.nodes import NodeCache
from drumline.controller.cache.workloads import LetGo, Workloads
from drumline.controller.conversion.resumed import resumed
from drumline.kube.kinds import JOB_SETS, JOBS
from drumline.kube.views import GateView, PlacementView, PodPhase, PodView, WorkloadView
from drumline.kube.workloads import batch_job, job_set
from drumline.scheduling.cycle import decide
from drumline.scheduling.model import Policy
from tests.unit.controller.views import node_view, pool_view, queue_view

NOW = 1_800_000_000.0
QUEUE = {"drumline.dev/queue": "research"}
POOLS = {"h100": GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})}


@pytest.fixture
def state() -> ClusterCache:
    """Two nodes of eight GPUs, a queue of sixteen."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW), admits_workloads=True)
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view(gpus=16))
    for name in ("node-0", "node-1"):
        state.nodes.on_node(None, node_view(name))
    return state


def template(gpus: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    container = {"name": "c", "resources": {"limits": limits}}
    return {"metadata": {"labels": QUEUE}, "spec": {"containers": [container]}}


def a_job(*, gpus: int = 4, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "train", "namespace": "team", "uid": "j", "labels": dict(QUEUE)},
        "spec": {"suspend": True, "template": template(gpus), **spec},
    }


def a_job_set(*, replicas: int = 2) -> dict[str, Any]:
    """A driver without GPUs, and Jobs of two workers each."""
    workers = {"parallelism": 2, "completions": 2, "template": template(4)}
    parts = [
        {"name": "driver", "template": {"spec": {"template": template(0)}}},
        {"name": "workers", "replicas": replicas, "template": {"spec": workers}},
    ]
    metadata = {"name": "set", "namespace": "team", "uid": "s", "labels": dict(QUEUE)}
    return {"metadata": metadata, "spec": {"suspend": True, "replicatedJobs": parts}}


def view(body: dict[str, Any]) -> WorkloadView:
    decode = job_set if "replicatedJobs" in body["spec"] else batch_job
    return decode(json.dumps(body).encode())


def workloads(state: ClusterCache) -> Workloads:
    assert state.workloads is not None
    return state.workloads


def let_go(state: ClusterCache) -> list[LetGo]:
    """What a cycle lets go."""
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW)
    return workloads(state).let_go(decisions.placed)


def held_gpus(state: ClusterCache) -> int:
    admitted = state.scheduling.snapshot(now=NOW).admitted
    return sum(held.gpus for held in admitted if held.gang.queue == "research")


def pod(name: str, *, accepted: bool = True, **rest: Any) -> PodView:
    """A pod of the Job, on a node."""
    labels = {**QUEUE, "drumline.dev/workload": "j", **rest.pop("labels", {})}
    return PodView(
        namespace="team",
        name=name,
        uid=name,
        resource_version="1",
        labels=labels,
        requests={"nvidia.com/gpu": 4},
        phase=PodPhase.RUNNING if accepted else PodPhase.PENDING,
        **rest,
    )


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"parallelism": 3}, 3),
        ({"parallelism": 3, "completions": 2}, 2),
        ({"parallelism": 0}, 0),
    ],
)
def test_a_job_asks_for_the_pods_that_it_runs_at_a_time(spec: dict[str, Any], pods: int) -> None:
    (shape,) = view(a_job(**spec)).shapes
    assert shape.pods == pods


def test_a_job_is_let_go_whole_and_charged_until_each_of_its_pods_is(state: ClusterCache) -> None:
    body = a_job(parallelism=3)
    waits = view(body)
    state.on_workload(JOBS, None, waits)
    (gang,) = state.scheduling.pending()
    assert (gang.key, gang.nodes, gang.per_pod.gpus) == ("team/jobs/train", 3, 4)
    (going,) = let_go(state)
    assert (state.scheduling.pending(), held_gpus(state)) == ([], 12)

    after = resumed(body, places=going.places, pools=POOLS)
    assert after is not None
    assert after["spec"]["suspend"] is False
    assert after["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    runs = view(after)
    state.on_workload(JOBS, waits, runs)
    workloads(state).settle(going.workload)
    assert (state.scheduling.pending(), held_gpus(state)) == ([], 12)
    state.on_pod(None, pod("a", node_name="node-0"))
    state.on_pod(None, pod("b", node_name="node-0"))
    assert held_gpus(state) == 12
    state.on_pod(None, pod("c", node_name="node-1", accepted=False))
    assert held_gpus(state) == 12
    after["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    state.on_workload(JOBS, runs, view(after))
    assert held_gpus(state) == 8


def test_a_job_that_is_too_large_for_what_is_free_waits_whole(state: ClusterCache) -> None:
    state.on_workload(JOBS, None, view(a_job(parallelism=5)))
    assert let_go(state) == []
    assert held_gpus(state) == 0


def test_a_job_that_has_pods_keeps_its_template() -> None:
    body = a_job() | {"status": {"startTime": "2027-01-01T00:00:00Z"}}
    after = resumed(body, places={}, pools=POOLS)
    assert after is not None
    assert after["spec"]["template"] == body["spec"]["template"]
    assert resumed(after, places={}, pools=POOLS) is None


def test_a_job_set_starts_with_its_parts_that_need_no_gpus(state: ClusterCache) -> None:
    body = a_job_set()
    state.on_workload(JOB_SETS, None, view(body))
    (gang,) = state.scheduling.pending()
    assert (gang.key, gang.nodes) == ("team/jobsets/set", 4)
    (going,) = let_go(state)
    after = resumed(body, places=going.places, pools=POOLS)
    assert after is not None
    driver, workers = (
        each["template"]["spec"]["template"] for each in after["spec"]["replicatedJobs"]
    )
    assert "nodeSelector" not in driver["spec"]
    assert workers["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert workers["metadata"]["labels"]["drumline.dev/workload-part"] == "workers"
    assert workers["metadata"]["labels"]["drumline.dev/workload"] == "s"


def test_jobs_of_a_job_set_do_not_wait_by_themselves(state: ClusterCache) -> None:
    body = a_job()
    body["metadata"]["ownerReferences"] = [{"uid": "s", "kind": "JobSet", "controller": True}]
    state.on_workload(JOBS, None, view(body))
    assert state.scheduling.pending() == []


def test_gates_of_its_pods_open_as_far_as_the_job_has_places(state: ClusterCache) -> None:
    """A pod that only says it is the job's opens no gate beyond these."""
    body = a_job(parallelism=2)
    waits = view(body)
    state.on_workload(JOBS, None, waits)
    gate = GateView(created_time="", is_last=True, placement=PlacementView())
    for name in ("a", "b", "forged"):
        state.on_pod(None, pod(name, accepted=False, gate=gate))
    assert [gang.key for gang in state.scheduling.pending()] == ["team/jobs/train"]
    assert workloads(state).unreleased() == []
    (going,) = let_go(state)
    after = resumed(body, places=going.places, pools=POOLS)
    assert after is not None
    state.on_workload(JOBS, waits, view(after))
    workloads(state).settle(going.workload)
    assert [each.name for each in workloads(state).unreleased()] == ["a", "b"]
    state.on_pod(pod("a", gate=gate), pod("a", node_name="node-0"))
    state.on_pod(pod("b", gate=gate), pod("b", node_name="node-0"))
    assert workloads(state).unreleased() == []


def test_a_job_that_is_suspended_again_waits_again(state: ClusterCache) -> None:
    body = a_job()
    state.on_workload(JOBS, None, view(body))
    (going,) = let_go(state)
    after = resumed(body, places=going.places, pools=POOLS)
    assert after is not None
    runs = view(after)
    state.on_workload(JOBS, view(body), runs)
    workloads(state).settle(going.workload)
    after["spec"]["suspend"] = True
    state.on_workload(JOBS, runs, view(after))
    assert [gang.key for gang in state.scheduling.pending()] == ["team/jobs/train"]
    assert held_gpus(state) == 0
