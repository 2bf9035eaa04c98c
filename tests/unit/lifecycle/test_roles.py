"""Pods of roles: who they are among the members, what they get, and what their end means."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.jobs.conversion import added_requests, gang_of, planned_requests
from drumline.controller.workloads.admitted import admitted_of, positions_of
from drumline.lifecycle.incidents.gpu_seconds import account_at
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.model.gang import observed_gang, reachable_agents
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.roles import (
    decides_success,
    gpus_of,
    member_order,
    member_position,
    role_pod,
    scheduling_order,
)
from drumline.lifecycle.plan.acceptance import refusal_of
from drumline.lifecycle.plan.generation_record import generation_record
from drumline.lifecycle.plan.planner import plan_job
from drumline.lifecycle.transitions import membership
from drumline_api.conditions import Phase
from drumline_scheduler.resources import Resources
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    pod_manifest,
    ready_pods,
    running,
)

LAUNCHER = {"name": "launcher", "command": ["mpirun"], "completesJob": True}
SERVERS = {"name": "ps", "nodes": 2, "gpusPerNode": 1, "resources": {"cpu": 3}}
NODES = ("n0", "n1", "ps-a", "ps-b")
SETTINGS = PodSettings(trainer_image="trainer:1", join_image="operator:1")
GPUS = PoolGpus(resource="nvidia.com/gpu")


def a_gang(*roles: dict[str, Any], launch: str | None = None, **spec: Any) -> Job:
    """Two pods of two ranks, and these roles."""
    template = {"image": "any:1", "command": ["train"], **spec.pop("template", {})}
    if launch is not None:
        template["launch"] = launch
    return a_job(template=template, roles=list(roles), **spec)


def test_members_are_counted_by_rank_first_and_then_role_by_role() -> None:
    spec = a_gang(LAUNCHER, SERVERS).spec
    pods = [role_pod(spec, index) for index in range(6)]
    assert [pod and pod.host for pod in pods] == [None, None, "launcher-0", "ps-0", "ps-1", None]
    assert gpus_of(spec, range(5)) == 2 + 2 + 0 + 1 + 1


def test_the_schedulers_order_is_that_of_the_members_turned() -> None:
    spec = a_gang(LAUNCHER, SERVERS).spec
    members = ["r0", "r1", "launcher", "ps0", "ps1"]
    places = scheduling_order(spec, members)
    assert places == ("launcher", "ps0", "ps1", "r0", "r1")
    assert list(member_order(spec, places)) == members
    assert [members[member_position(spec, at, members=5)] for at in range(5)] == list(places)


def test_the_ranks_decide_the_end_unless_a_role_does() -> None:
    by_rank = a_gang(SERVERS).spec
    assert [decides_success(by_rank, index) for index in range(4)] == [True, True, False, False]
    by_role = a_gang(LAUNCHER, SERVERS).spec
    assert [decides_success(by_role, index) for index in range(5)] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_sidecars_are_for_the_ranks_alone() -> None:
    sidecars = [{"name": "proxy", "command": ["proxy"], "resources": {"cpu": 1}}]
    gang = gang_of(
        a_gang(SERVERS, resources={"cpu": 9}, template={"sidecars": sidecars}), priority=0
    )
    (servers,) = gang.roles
    assert (gang.per_pod.cpu_millis, servers.per_pod.cpu_millis) == (10000, 3000)


def test_the_scheduler_sees_roles_with_their_own_requests() -> None:
    job = a_gang(LAUNCHER, SERVERS, launch="PerGpu", resources={"cpu": 9})
    gang = gang_of(job, priority=0)
    assert (gang.nodes, gang.gpus, gang.extras) == (2, 6, 3)
    launcher, servers = gang.roles
    assert (launcher.per_pod.gpus, launcher.per_pod.cpu_millis) == (0, 100)
    assert (servers.pods, servers.per_pod.gpus, servers.per_pod.cpu_millis) == (2, 1, 3000)
    assert gang.per_pod.cpu_millis == 9000
    # where they wait for the gang, an init container does
    assert gang_of(a_gang(LAUNCHER), priority=0).roles[0].per_pod.cpu_millis == 500
    # what admission adds is counted from what that pod was to have
    pod = role_pod(job.spec, 3)
    assert pod is not None
    planned = planned_requests(job, pod.role)
    assert added_requests(planned, {"cpu": 3100}) == Resources(cpu_millis=100)


def test_an_admitted_gang_shows_the_scheduler_its_places_in_its_order() -> None:
    job = admitted(a_gang(SERVERS), nodes=NODES)
    status = membership.members_lost(job, indices=[1, 2], reason="NodeLost", message="", now=T0)  # pyright: ignore[reportArgumentType] - any reason serves
    job = Job(**{**_fields(job), "status": status})
    (seen,) = admitted_of(
        job,
        gang=gang_of(job, priority=0),
        positions=positions_of(job),
        pods=(),
        progress=None,
        now=T0,
    )
    assert seen.assignment == ("ps-a", "ps-b", "n0", "n1")
    assert seen.lost == {0, 3}
    assert (seen.size, seen.gpus) == (2, 6)


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in Job.__slots__ if name != "status"}


def test_gpu_seconds_count_what_each_pod_holds() -> None:
    job = running(admitted(a_gang(LAUNCHER, SERVERS), nodes=("a", "b", "c", "d", "e")))
    account = account_at(job.spec, job.status, now=T0 + 10)
    assert account is not None
    assert account.productive == 10 * 6
    assert job.gpus == 6
    assert job.status.ready == "5/5"


def test_a_pod_of_a_role_has_its_own_container_and_the_templates_pod() -> None:
    job = admitted(
        a_gang(
            LAUNCHER | {"env": [{"name": "A", "value": "1"}]},
            template={
                "runAsUser": 1000,
                "env": [{"name": "B", "value": "2"}],
                "initContainers": [{"name": "fetch", "command": ["fetch"]}],
                "sidecars": [{"name": "proxy", "command": ["proxy"]}],
                "labels": {"cost-centre": "9"},
            },
        ),
        nodes=("a", "b", "c"),
    )
    pod = pod_manifest(job, index=2, gpus=GPUS, settings=SETTINGS)
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["command"]) == ("any:1", ["mpirun"])
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["A"] == "1"
    assert "B" not in variables
    assert (variables["DRUMLINE_ROLE"], variables["DRUMLINE_ROLE_INDEX"]) == ("launcher", "0")
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert variables["MASTER_ADDR"] == "llama-0"
    assert variables["OMPI_MCA_orte_default_hostfile"].endswith("/hostfile")
    assert "NODE_RANK" not in variables
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {}}
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["drumline-join"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    labels = pod["metadata"]["labels"]
    assert (labels["drumline.dev/role"], labels["cost-centre"]) == ("launcher", "9")
    assert {pod["metadata"]["labels"]["drumline.dev/nodes"] for pod in pods_of(job)} == {"3"}


def pods_of(job: Job) -> list[dict[str, Any]]:
    return pod_manifests(job, indices=range(job.members), gpus=GPUS, settings=SETTINGS)


def test_beside_agents_a_pod_of_a_role_has_none_and_is_evicted_from_a_silent_node() -> None:
    code = {"digest": f"sha256:{'a' * 64}", "configMaps": ["part"]}
    job = admitted(a_gang(SERVERS, launch="PerGpu", template={"code": code}), nodes=NODES)
    rank, server = (
        pod_manifest(job, index=index, gpus=GPUS, settings=SETTINGS) for index in (0, 2)
    )
    (container,) = server["spec"]["containers"]
    assert "ports" not in container
    assert container["workingDir"] == "/code"
    assert "/code" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert [each["name"] for each in server["spec"]["initContainers"]] == ["drumline-agent"]
    assert "NVIDIA_VISIBLE_DEVICES" not in {each["name"] for each in container["env"]}
    unreachable = "node.kubernetes.io/unreachable"
    assert unreachable in {each.get("key") for each in rank["spec"]["tolerations"]}
    assert unreachable not in {each.get("key") for each in server["spec"]["tolerations"]}


def test_a_pod_that_waits_for_the_gang_is_a_member_without_ranks() -> None:
    job = admitted(a_gang(LAUNCHER), nodes=("a", "b", "c"))
    record = generation_record(job, observed_gang(job, observed(*ready_pods(job))))
    assert [(each.host, each.ranks, each.alias) for each in record.members] == [
        ("llama-0", 2, ""),
        ("llama-1", 2, ""),
        ("llama-2", 0, "launcher-0"),
    ]
    assert (record.world_size, record.companions) == (4, ())


def test_beside_agents_the_pods_of_roles_are_known_and_not_asked() -> None:
    job = admitted(a_gang(SERVERS, launch="PerGpu"), nodes=NODES)
    pods = ready_pods(job)
    record = generation_record(job, observed_gang(job, observed(*pods)))
    assert [each.index for each in record.members] == [0, 1]
    assert [each.alias for each in record.companions] == ["ps-0", "ps-1"]
    assert [pod.index for pod in reachable_agents(job, pods, known=1)] == [0, 1]


def planned(job: Job, *pods: Any) -> Any:
    seen = observed(*pods, acknowledged_generation=job.status.generation)
    return plan_job(job, seen, now=T0 + 60, epoch=EPOCH)


def test_a_launcher_that_succeeds_ends_the_job_and_a_rank_that_does_not() -> None:
    job = running(admitted(a_gang(LAUNCHER), nodes=("a", "b", "c")))
    ranks = [a_pod(job, index, ip="10.0.0.1", ready=True) for index in (0, 1)]
    launcher = a_pod(job, 2, end=ended(exit_code=0))
    assert planned(job, *ranks, launcher).status.phase is Phase.SUCCEEDED
    done = [a_pod(job, index, end=ended(exit_code=0)) for index in (0, 1)]
    waits = planned(job, *done, a_pod(job, 2, ip="10.0.0.3", ready=True))
    assert waits.status is None


@pytest.mark.parametrize("launch", [None, "PerGpu"])
def test_ranks_that_succeed_end_the_job_though_a_server_runs_on(launch: str | None) -> None:
    job = running(admitted(a_gang(SERVERS, launch=launch), nodes=NODES))
    done = [a_pod(job, index, end=ended(exit_code=0)) for index in (0, 1)]
    servers = [a_pod(job, index, ip="10.0.0.9", ready=True) for index in (2, 3)]
    planned_end = planned(job, *done, *servers)
    assert planned_end.status.phase is Phase.SUCCEEDED


def test_a_server_that_succeeds_ends_nothing() -> None:
    job = running(admitted(a_gang(SERVERS, launch="PerGpu"), nodes=NODES))
    ranks = [a_pod(job, index, ip="10.0.0.1", ready=True) for index in (0, 1)]
    servers = [a_pod(job, index, end=ended(exit_code=0)) for index in (2, 3)]
    assert planned(job, *ranks, *servers).status is None


def test_beside_agents_a_failed_server_alone_gets_a_new_pod() -> None:
    job = running(admitted(a_gang(SERVERS, launch="PerGpu"), nodes=NODES))
    ranks = [a_pod(job, index, ip="10.0.0.1", ready=True) for index in (0, 1)]
    servers = [a_pod(job, 2, end=ended(exit_code=0)), a_pod(job, 3, end=ended(exit_code=137))]
    status = planned(job, *ranks, *servers).status
    assert [(each.generation, each.indices) for each in status.assignment.replaced] == [(2, [3])]
    assert [(each.fault_class, each.used) for each in status.budgets] == [("Application", 1)]


def test_a_peer_that_is_lost_is_not_looked_for_among_the_roles() -> None:
    job = running(admitted(a_gang(SERVERS, launch="PerGpu"), nodes=NODES))
    blamed = [a_pod(job, index, end=ended(exit_code=75, at=T0)) for index in (0, 1)]
    servers = [a_pod(job, index, ip="10.0.0.9", ready=True) for index in (2, 3)]
    status = planned(job, *blamed, *servers).status
    assert status.assignment.lost is None
    new = {member.index for member in members_of(status) if member.pod_generation == 2}
    assert new == {0, 1}


def test_a_role_cannot_read_the_token_of_a_job() -> None:
    secret = {"name": "other-drumline-token", "key": "token"}
    role = {"name": "a", "env": [{"name": "T", "valueFrom": {"secretKeyRef": secret}}]}
    refusal = refusal_of(a_gang(role))
    assert refusal is not None
    assert "roles[a].env[T]" in refusal.message


def test_roles_beside_the_bundled_trainer_are_refused_where_nobody_asked_the_rules() -> None:
    job = a_job(roles=[{"name": "a"}])
    refusal = refusal_of(job)
    assert refusal is not None
    assert "roles need template" in refusal.message
    assert gang_of(job, priority=0).extras == 1  # and nothing that looks at it fails
