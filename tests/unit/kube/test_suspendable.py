"""Ray's and Kubeflow's workloads, as far as quota is asked for their pods."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from drumline.controller.workloads.conversion import PlacesFound, places_in
from drumline.controller.workloads.resumed import resumed, suspended_again
from drumline.kube.codec import Undecodable
from drumline.kube.kinds import JOB_SETS, JOBS
from drumline.kube.suspendable import suspendable
from drumline.kube.workload_kinds import KINDS, OTHER_KINDS, WorkloadKind, parts_of
from drumline.kube.workload_views import WorkloadView
from drumline.kube.workloads import MAX_PODS
from drumline_api.gpupool import GpuPoolSpec
from tests import workload_crds
from tests.unit.controller.workload_bodies import a_job, a_job_set

Json = dict[str, Any]
POD = {
    "metadata": {"labels": {"drumline.dev/queue": "research"}},
    "spec": {
        "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 4}}}],
        "nodeSelector": {"disk": "large"},
        "priorityClassName": "high",
    },
}
METADATA = {"name": "work", "namespace": "team", "uid": "w", "labels": {"drumline.dev/queue": "q"}}
EVERY_KIND = pytest.mark.parametrize("kind", list(OTHER_KINDS))


def body_of(kind: str) -> Json:
    return copy.deepcopy(workload_crds.suspended(kind, pod=POD, metadata=METADATA))


def view(kind: str, body: Json) -> WorkloadView:
    return suspendable(json.dumps(body).encode(), kind=OTHER_KINDS[kind])


@EVERY_KIND
def test_each_kind_has_its_pods_its_switch_and_what_says_that_it_waits(kind: str) -> None:
    seen = view(kind, body_of(kind))
    assert (seen.namespace, seen.name, seen.uid) == ("team", "work", "w")
    assert (seen.suspended, seen.over, seen.is_child) == (True, False, False)
    first, second = seen.shapes
    assert (first.pods, first.requests.get("nvidia.com/gpu", 0)) == (1, 0)
    assert (second.pods, second.requests["nvidia.com/gpu"]) == (2, 4)
    assert second.placement.node_selector == {"disk": "large"}
    assert second.placement.priority_class == "high"
    assert len({first.name, second.name}) == 2


@EVERY_KIND
def test_each_kind_can_be_resumed(kind: str) -> None:
    body = body_of(kind)
    body["spec"]["suspend"] = False
    body["spec"]["runPolicy"] = {"suspend": False}
    assert not view(kind, body).suspended


@EVERY_KIND
def test_the_templates_of_a_kind_are_those_of_its_pods(kind: str) -> None:
    body = body_of(kind)
    for part in parts_of(OTHER_KINDS[kind], body):
        part.template["metadata"] = {"labels": {"seen": part.name}}
    assert json.dumps(body).count('"seen"') == 2


@pytest.mark.parametrize(
    ("group", "pods"),
    [
        ({}, 2),
        ({"replicas": None, "minReplicas": 3}, 3),
        ({"replicas": 9}, 4),
        ({"replicas": 1, "minReplicas": 2}, 2),
        ({"numOfHosts": 4}, 8),
        ({"suspend": True}, 0),
        ({"replicas": 0}, 0),
    ],
)
def test_a_group_of_ray_has_its_replicas_between_their_bounds_times_its_hosts(
    group: Json, pods: int
) -> None:
    """Its autoscaler writes the replicas."""
    body = body_of("RayCluster")
    body["spec"]["workerGroupSpecs"][0] |= group
    _, workers = view("RayCluster", body).shapes
    assert workers.pods == pods


def test_a_ray_job_on_somebody_else_s_cluster_has_no_pods() -> None:
    body = body_of("RayJob")
    body["spec"]["rayClusterSpec"] = None
    assert view("RayJob", body).shapes == ()


def owned(body: Json, kind: str) -> Json:
    owner = {"kind": kind, "name": "o", "uid": "o", "controller": True}
    body["metadata"] = {**body["metadata"], "ownerReferences": [owner]}
    return body


def ended(body: Json, status: Json) -> Json:
    return {**body, "status": status}


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        ("RayCluster", lambda body: owned(body, "RayJob"), "is_child"),
        ("RayCluster", lambda body: owned(body, "RayService"), "is_child"),
        ("RayJob", lambda body: ended(body, {"jobDeploymentStatus": "Complete"}), "over"),
        ("RayJob", lambda body: ended(body, {"jobDeploymentStatus": "Failed"}), "over"),
        (
            "PyTorchJob",
            lambda body: ended(body, {"conditions": [{"type": "Succeeded", "status": "True"}]}),
            "over",
        ),
    ],
)
def test_what_another_starts_and_what_has_ended_waits_for_nothing(
    kind: str, change: Callable[[Json], Json], field: str
) -> None:
    assert getattr(view(kind, change(body_of(kind))), field) is True
    assert getattr(view(kind, body_of(kind)), field) is False


@pytest.mark.parametrize("kind", ["RayJob", "PyTorchJob", "MPIJob"])
def test_a_limit_is_the_workload_s_or_its_pods(kind: str) -> None:
    body = body_of(kind)
    body["spec"]["activeDeadlineSeconds"] = 600
    body["spec"]["runPolicy"] = {"suspend": True, "activeDeadlineSeconds": 600}
    body["status"] = {"startTime": "2027-01-01T00:00:00Z"}
    seen = view(kind, body)
    assert [shape.deadline_seconds for shape in seen.shapes] == [600, 600]
    assert seen.start_time == "2027-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "spec",
    [
        {"headGroupSpec": 3},
        {"headGroupSpec": {"template": {}}},
        {"workerGroupSpecs": [{"template": POD}]},
        {"workerGroupSpecs": [{"groupName": "w", "replicas": "2", "template": POD}]},
        {"workerGroupSpecs": [{"groupName": "w", "replicas": MAX_PODS + 1, "template": POD}]},
        {"workerGroupSpecs": [{"groupName": f"w{n}", "template": POD} for n in range(33)]},
    ],
)
def test_what_nothing_can_be_made_of_is_left_out(spec: Json) -> None:
    body = body_of("RayCluster")
    body["spec"] |= spec
    with pytest.raises(Undecodable):
        view("RayCluster", body)


@EVERY_KIND
def test_each_kind_can_be_let_go_and_taken_back(kind: str) -> None:
    resource = OTHER_KINDS[kind].resource
    body = body_of(kind)
    let_go = resumed(body, resource=resource, places={}, pools={})
    assert let_go is not None
    assert not view(kind, let_go).suspended
    assert "drumline.dev/admitted" in let_go["metadata"]["annotations"]
    back = suspended_again(let_go, resource=resource)
    assert back is not None
    assert view(kind, back).suspended
    assert back["metadata"]["annotations"] == {}
    assert suspended_again(body, resource=resource) is None


@pytest.mark.parametrize("kind", ["PyTorchJob", "MPIJob"])
@pytest.mark.parametrize("policy", [{}, {"runPolicy": None}])
def test_what_lost_its_switch_can_be_taken_back(kind: str, policy: Json) -> None:
    """Its owner took all of runPolicy away once it was let go."""
    resource = OTHER_KINDS[kind].resource
    let_go = resumed(body_of(kind), resource=resource, places={}, pools={})
    assert let_go is not None
    del let_go["spec"]["runPolicy"]
    let_go["spec"] |= policy
    back = suspended_again(let_go, resource=resource)
    assert back is not None
    assert view(kind, back).suspended


@EVERY_KIND
def test_a_template_may_say_null_where_labels_are_written(kind: str) -> None:
    body = body_of(kind)
    body["metadata"]["annotations"] = None
    row = OTHER_KINDS[kind]
    for part in parts_of(row, body):
        part.template["metadata"] = None
        part.template["spec"]["nodeSelector"] = None
    pools = {"h100": GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})}
    places = {part.name: PlacesFound(pool="h100", nodes={}) for part in parts_of(row, body)}
    let_go = resumed(body, resource=row.resource, places=places, pools=pools)
    assert let_go is not None
    for part in parts_of(row, let_go):
        assert part.template["metadata"]["labels"]["drumline.dev/workload"] == "w"
        assert part.template["spec"]["nodeSelector"] == {"gpu": "h100"}


POOLS = {
    name: GpuPoolSpec.model_validate({"nodeSelector": selector})
    for name, selector in {
        "h100": {"gpu": "h100", "disk": "fast", "zone": "a"},
        "a100": {"gpu-kind": "a100"},
    }.items()
}


def selectors(row: WorkloadKind, body: Json) -> list[Json]:
    return [part.template["spec"].get("nodeSelector") for part in parts_of(row, body)]


def let_go_into(pool: str, row: WorkloadKind, body: Json) -> Json:
    """All parts of it but the first, which needs no GPUs."""
    _, *parts = parts_of(row, body)
    places = {part.name: PlacesFound(pool=pool, nodes={"n": 1}) for part in parts}
    made = resumed(body, resource=row.resource, places=places, pools=POOLS)
    assert made is not None
    return made


@pytest.mark.parametrize("row", [KINDS[JOB_SETS], *OTHER_KINDS.values()])
def test_what_is_taken_back_may_run_in_another_pool(row: WorkloadKind) -> None:
    body = a_job_set() if row.resource == JOB_SETS else body_of(row.resource.kind)
    *_, part = parts_of(row, body)
    part.template["spec"]["nodeSelector"] = {"disk": "large", "zone": "a"}
    before = selectors(row, body)
    let_go = let_go_into("h100", row, body)
    assert selectors(row, let_go)[-1] == {"gpu": "h100", "disk": "fast", "zone": "a"}
    back = suspended_again(let_go, resource=row.resource)
    assert back is not None
    assert selectors(row, back) == before
    other = selectors(row, let_go_into("a100", row, back))
    assert other == [*before[:-1], {"disk": "large", "zone": "a", "gpu-kind": "a100"}]


def test_what_the_owner_has_changed_meanwhile_stays() -> None:
    row = OTHER_KINDS["RayCluster"]
    let_go = let_go_into("h100", row, body_of("RayCluster"))
    *_, part = parts_of(row, let_go)
    part.template["spec"]["nodeSelector"] |= {"gpu": "mine"}
    back = suspended_again(let_go, resource=row.resource)
    assert back is not None
    assert selectors(row, back)[-1] == {"gpu": "mine", "disk": "large"}


@pytest.mark.parametrize(
    "spec",
    [
        {"workerGroupSpecs": [3]},
        {"workerGroupSpecs": [{"groupName": "w", "template": {"spec": None}}]},
        {"workerGroupSpecs": [{"groupName": "w", "template": {"spec": {"nodeSelector": 3}}}]},
        {"workerGroupSpecs": [{"template": POD}]},
        {"workerGroupSpecs": 3},
    ],
)
def test_what_its_owner_has_made_unreadable_is_taken_back_all_the_same(spec: Json) -> None:
    row = OTHER_KINDS["RayCluster"]
    let_go = let_go_into("h100", row, body_of("RayCluster"))
    let_go["spec"] |= spec
    back = suspended_again(let_go, resource=row.resource)
    assert back is not None
    assert back["spec"] == {**let_go["spec"], "suspend": True}


@pytest.mark.parametrize("value", [3, "long" * 16, None, {}])
def test_a_selector_that_is_none_leaves_the_mark_readable(value: object) -> None:
    """What is charged is read from it."""
    body = body_of("RayCluster")
    *_, part = parts_of(OTHER_KINDS["RayCluster"], body)
    part.template["spec"]["nodeSelector"] = {"gpu": value}
    let_go = let_go_into("h100", OTHER_KINDS["RayCluster"], body)
    places = places_in(let_go["metadata"]["annotations"]["drumline.dev/admitted"])
    assert places["workers"].selected["gpu"] == ("h100", None)


def test_of_a_job_that_runs_the_template_stays() -> None:
    """The API server refuses any other."""
    body = a_job()
    places = {"": PlacesFound(pool="h100", nodes={"n": 1})}
    let_go = resumed(body, resource=JOBS, places=places, pools=POOLS)
    assert let_go is not None
    back = suspended_again(let_go, resource=JOBS)
    assert back is not None
    assert back["spec"]["template"] == let_go["spec"]["template"]


@pytest.mark.parametrize("text", ["0000-01-01T00:00:00Z", "soon", "", "0001-01-01T00:00:00"])
def test_a_start_that_is_no_time_is_none(text: str) -> None:
    """Whoever writes the status of a foreign object could stop every cycle with it."""
    body = body_of("PyTorchJob") | {"status": {"startTime": text}}
    assert view("PyTorchJob", body).start_time == ""
