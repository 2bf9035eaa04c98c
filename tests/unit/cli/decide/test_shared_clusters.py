"""`drumline decide` where others share the cluster: gated pods, workloads, devices, guards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline.kube.storage_codec import persistent_volume
from tests.texts import missing
from tests.unit.cli.decide.test_command import (
    a_class,
    a_job,
    a_node,
    a_pool,
    a_queue,
    run,
    verdicts,
    written,
)

Json = dict[str, Any]
DRIVER = "gpu.example.com"
QUEUE = {"drumline.dev/queue": "q"}


def pod_spec(gpus: int, **rest: Any) -> Json:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {"containers": [{"name": "main", "resources": {"requests": limits}}], **rest}


def a_gated_pod(name: str, *, gpus: int = 8, **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {**QUEUE, **labels}},
        "spec": pod_spec(gpus, schedulingGates=[{"name": "drumline.dev/queue"}]),
        "status": {"phase": "Pending"},
    }


def a_suspended_job(name: str, *, pods: int, gpus: int = 8, queue: str = "q") -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "labels": {"drumline.dev/queue": queue}},
        "spec": {"suspend": True, "parallelism": pods, "template": {"spec": pod_spec(gpus)}},
    }


def test_pods_and_workloads_that_wait_are_in_line_with_the_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = (a_node("n1"), a_node("n2"), a_pool(), a_queue(16), a_class("high", 5))
    waiting = (a_gated_pod("notebook"), a_suspended_job("batch", pods=1))
    said = verdicts(capsys, "-f", written(tmp_path, *site, *waiting))
    assert {name: (each["verdict"], each["pool"]) for name, each in said.items()} == {
        "team/pods/notebook": ("Admitted", "h100"),
        "team/jobs/batch": ("Admitted", "h100"),
    }
    assert not any("nodes" in each for each in said.values())  # kube-scheduler chooses these
    job = a_job("job", nodes=1, priorityClassName="high")
    said = verdicts(capsys, "-f", written(tmp_path, *site, *waiting, job))
    assert said["team/job"]["verdict"] == "Placed"
    answers = sorted((each["verdict"], each.get("reason")) for each in said.values())
    assert answers == [("Admitted", None), ("Placed", None), ("Waits", "QuotaExhausted")]


def test_an_operator_that_admits_nothing_or_nobody_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = (a_gated_pod("notebook"), a_suspended_job("other", pods=1, queue="unlike"))
    file = written(tmp_path, a_node("n1"), a_pool(), a_queue(16), *waiting)
    values = tmp_path / "values.yaml"
    values.write_text("foreignPods: {admission: {enabled: false}}\nscheduling: {}\n")
    assert verdicts(capsys, "-f", file, "--policy", str(values)) == {}
    assert verdicts(capsys, "-f", file)["team/jobs/other"]["reason"] == "QueueNotFound"


def test_no_workload_of_a_namespace_that_ends_gets_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No controller can create its pods there, and they would keep the quota for ever."""
    ending: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    site = (a_node("n1"), a_node("n2"), a_pool(), a_queue())
    waiting = (a_gated_pod("notebook"), a_suspended_job("batch", pods=1))
    for phase, verdict in (("Active", "Admitted"), ("Terminating", "Waits")):
        ending["status"] = {"phase": phase}
        said = verdicts(capsys, "-f", written(tmp_path, *site, ending, *waiting))
        assert {row["verdict"] for row in said.values()} == {verdict}
        assert {row.get("reason") for row in said.values()} <= {None, "NamespaceTerminating"}


def only_on(*nodes: str, key: str = "metadata.name", among: str = "matchFields") -> Json:
    fields = [{"key": key, "operator": "In", "values": list(nodes)}]
    terms = {"nodeSelectorTerms": [{among: fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(("node", "verdict"), [("n1", "Waits"), ("n2", "Admitted")])
def test_a_pod_that_names_its_node_waits_for_that_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str, verdict: str
) -> None:
    waiting = a_gated_pod("notebook")
    waiting["spec"]["affinity"] = only_on(node)
    full = a_pod("other", on="n1", limits={"nvidia.com/gpu": "8"})
    file = written(tmp_path, a_node("n1"), a_node("n2"), a_pool(), a_queue(), full, waiting)
    assert verdicts(capsys, "-f", file)["team/pods/notebook"]["verdict"] == verdict
    waiting["spec"]["affinity"] = only_on(node, key="gpu")
    file = written(tmp_path, a_node("n1"), a_pool(), a_queue(), waiting)
    assert not missing(run(capsys, "decide", "-f", file)[1], "'gpu' is no field of a node")


def test_a_label_that_is_called_like_the_name_of_a_node_is_on_no_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kube-scheduler would leave the pod pending, and it would keep its quota."""
    waiting = a_gated_pod("notebook")
    waiting["spec"]["affinity"] = only_on("n1", among="matchExpressions")
    file = written(tmp_path, a_node("n1"), a_pool(), a_queue(), waiting)
    assert verdicts(capsys, "-f", file)["team/pods/notebook"]["verdict"] == "Waits"
    volume: Json = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {}}}}
    terms = [{"matchExpressions": [{"key": "metadata.name", "operator": "Exists"}]}]
    volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = terms
    ((expression,),) = persistent_volume(json.dumps(volume).encode()).affinity
    assert expression.key != "metadata.name"


@pytest.mark.parametrize(("node", "verdict"), [("n1", "Waits"), ("n2", "Admitted")])
def test_a_workload_whose_template_names_a_node_waits_for_that_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str, verdict: str
) -> None:
    """Its pods are created on that node, and a kubelet without room rejects them."""
    waiting = a_suspended_job("batch", pods=1)
    template = waiting["spec"]["template"]["spec"]
    template["nodeName"] = node
    full = a_pod("other", on="n1", limits={"nvidia.com/gpu": "8"})
    site = (a_node("n1"), a_node("n2"), a_pool(), a_queue(), full)
    said = verdicts(capsys, "-f", written(tmp_path, *site, waiting))
    assert said["team/jobs/batch"]["verdict"] == verdict
    template["affinity"] = only_on("n1")
    said = verdicts(capsys, "-f", written(tmp_path, *site, waiting))
    assert said["team/jobs/batch"]["verdict"] == "Waits"


def a_pod(name: str, *, on: str, **resources: Json) -> Json:
    spec = {"nodeName": on, "containers": [{"name": "main", "resources": resources}]}
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("limits", "requests", "node"),
    [
        ({"nvidia.com/gpu": "8"}, {}, "n2"),
        ({"memory": "1Ti"}, {}, "n2"),
        ({"memory": "1Ti"}, {"memory": "1Gi"}, "n1"),
    ],
)
def test_a_pod_that_was_never_applied_requests_what_it_limits(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    limits: Json,
    requests: Json,
    node: str,
) -> None:
    """The API server writes the requests into each pod that it stores."""
    resources = {"limits": limits, "requests": requests}
    whole = a_pod("other", on="n1")
    whole["spec"]["resources"] = resources
    job = a_job("job", nodes=1, resources={"memory": "500Gi"})
    for pod in (a_pod("other", on="n1", **resources), whole):
        file = written(tmp_path, a_node("n1"), a_node("n2"), a_pool(), a_queue(), pod, job)
        assert verdicts(capsys, "-f", file)["team/job"]["nodes"] == [node]


def test_numbers_and_unknown_phases_of_a_manifest_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML makes numbers of 8 and 0.5, and the API server takes them."""
    requests: Json = {"nvidia.com/gpu": 8, "cpu": 0.5, "memory": 1e9}
    pod = a_pod("other", on="n1", requests=requests)
    pod["status"] = {"phase": "Resting"}
    numbers: Json = {"cpu": 96, "memory": 1e12, "pods": 110.0, "nvidia.com/gpu": 8}
    nodes = [a_node(name, allocatable=numbers) for name in ("n1", "n2")]
    job = a_job("job", nodes=1)
    file = written(tmp_path, *nodes, a_pool(), a_queue(), pod, job)
    assert verdicts(capsys, "-f", file)["team/job"]["nodes"] == ["n2"]


def test_a_gated_pod_that_was_never_applied_has_the_priority_of_its_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = (a_node("n1"), a_pool(), a_queue(8), a_class("high", 5))
    waiting = a_gated_pod("notebook")
    waiting["spec"]["priorityClassName"] = "high"
    file = written(tmp_path, *site, waiting, a_job("job", nodes=1))
    assert verdicts(capsys, "-f", file)["team/pods/notebook"]["verdict"] == "Admitted"
    waiting["spec"]["priorityClassName"] = "unknown"
    file = written(tmp_path, *site, waiting)
    assert "PriorityClassNotFound" in run(capsys, "decide", "-f", file)[1]


@pytest.mark.parametrize("time", ["2026-11-28T24:00:00Z", "true", ""])
def test_a_time_that_cannot_be_read_stops_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    waiting = (a_gated_pod("notebook"), a_suspended_job("batch", pods=1))
    for each in waiting:
        each["metadata"]["creationTimestamp"] = time
    said = verdicts(capsys, "-f", written(tmp_path, a_node("n1"), a_pool(), a_queue(), *waiting))
    answers = sorted(each["verdict"] for each in said.values())
    assert answers == ["Admitted", "Waits"]


def test_an_invalid_job_of_an_invalid_namespace_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_job("job", nodes=1, minNodes=1, resources={"cpu": "1"})
    job["metadata"] |= {"namespace": "é\u202e", "resourceVersion": "1"}
    file = written(tmp_path, a_node("n1"), a_pool(), a_queue(), job)
    assert not missing(run(capsys, "decide", "-f", file)[1], "InvalidConfig")


def a_suspended_ray_cluster(name: str) -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": "team", "labels": QUEUE},
        "spec": {"suspend": True, "headGroupSpec": {"template": {"spec": pod_spec(8)}}},
    }


def a_suspended_mpi_job(name: str) -> Json:
    replicas = {"Worker": {"replicas": 1, "template": {"spec": pod_spec(8)}}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": "team", "labels": QUEUE},
        "spec": {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": replicas},
    }


@pytest.mark.parametrize(
    ("values", "admitted"),
    [
        (None, {"team/rayclusters/ray", "team/mpijobs/mpi"}),
        ("{enabled: true, kinds: [MPIJob]}", {"team/mpijobs/mpi"}),
        ("{enabled: true}", set[str]()),
    ],
)
def test_other_kinds_wait_where_the_values_say_so_or_nothing_is_known(
    values: str | None, admitted: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = (a_suspended_ray_cluster("ray"), a_suspended_mpi_job("mpi"))
    nodes = (a_node("n1"), a_node("n2"))
    arguments = ["-f", written(tmp_path, *nodes, a_pool(), a_queue(16), *waiting)]
    if values is not None:
        file = tmp_path / "values.yaml"
        file.write_text(f"foreignPods: {{admission: {values}}}\n")
        arguments += ["--policy", str(file)]
    said = verdicts(capsys, *arguments)
    assert {name for name, each in said.items() if each["verdict"] == "Admitted"} == admitted


def test_a_group_that_is_not_complete_is_said_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = a_gated_pod("a", gpus=8, **{"drumline.dev/pod-group": "g"})
    half["metadata"]["annotations"] = {"drumline.dev/pod-group-size": "2"}
    text = run(capsys, "decide", "-f", written(tmp_path, a_node("n1"), a_pool(), a_queue(), half))[
        1
    ]
    assert not missing(text.splitlines()[-1], "team/pods/g", "WaitingForGroup", "1 of 2 pods")


def a_slice(node: str, *, gpus: int, tainted: int = 0) -> Json:
    taint = {"taints": [{"key": "xid", "value": "79", "effect": "NoSchedule"}]}
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"type": {"string": "gpu"}},
            **(taint if number < tainted else {}),
        }
        for number in range(gpus)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


def a_claim(name: str, *, node: str, device: str) -> Json:
    result = {"request": "r", "driver": DRIVER, "pool": node, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def a_device_node(name: str) -> Json:
    node = a_node(name)
    del node["status"]["allocatable"]["nvidia.com/gpu"]
    return node


def test_devices_of_slices_count_but_those_that_are_tainted_or_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = a_pool()
    pool["spec"]["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    nodes = [a_device_node(name) for name in ("n1", "n2", "n3")]
    slices = [a_slice("n1", gpus=8, tainted=1), a_slice("n2", gpus=8), a_slice("n3", gpus=8)]
    claim = a_claim("notebook", node="n2", device="gpu-3")
    site = (*nodes, pool, a_queue(24), *slices, claim)
    file = written(tmp_path, *site, a_job("job", nodes=1))
    assert verdicts(capsys, "-f", file)["team/job"]["nodes"] == ["n3"]
    rule: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "repair"},
        "spec": {
            "deviceSelector": {"pool": "n3"},
            "taint": {"key": "repair", "effect": "NoSchedule"},
        },
    }
    repaired = written(tmp_path, *site, rule, a_job("job", nodes=1))
    assert verdicts(capsys, "-f", repaired)["team/job"]["verdict"] == "Waits"
    two = written(tmp_path, *site, a_job("job", nodes=2))
    assert verdicts(capsys, "-f", two)["team/job"]["verdict"] == "Waits"
    assert "ignore the decisions" not in run(capsys, "decide", "-f", two)[1]


def a_slice_of_channels(node: str) -> Json:
    attributes = {"type": {"string": "channel"}, "id": {"int": 0}}
    driver = "compute-domain.nvidia.com"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-channels"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "channel-0", "attributes": attributes}],
        },
    }


def test_a_job_with_a_compute_domain_says_that_devices_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [a_node(name) for name in ("n1", "n2", "n3")]
    site = (*nodes, a_pool(), a_queue(24), *map(a_slice_of_channels, ("n2", "n3")))
    file = written(tmp_path, *site, a_job("job", nodes=2, computeDomain={}))
    assert verdicts(capsys, "-f", file)["team/job"]["nodes"] == ["n2", "n3"]
    values = tmp_path / "values.yaml"
    values.write_text("dynamicResources: {enabled: false}\n")
    said = verdicts(capsys, "-f", file, "--policy", str(values))
    assert said["team/job"]["verdict"] == "Waits"


def test_foreign_pods_give_back_what_they_borrow_in_guarded_pools_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    borrower = a_queue(0, name="serving", parent="all", foreignPods={"borrowed": "Evict"})
    owner = a_queue(8, parent="all", preemption={"reclaim": "Any"})
    parent = a_queue(0, name="all")
    chat = {**a_gated_pod("chat"), "spec": pod_spec(8, nodeName="n1")}
    chat["metadata"]["labels"] = {"drumline.dev/queue": "serving"}
    chat["status"] = {"phase": "Running"}
    objects = (a_node("n1"), a_pool(), parent, owner, borrower, chat, a_job("job", nodes=1))
    file = written(tmp_path, *objects)
    values = tmp_path / "values.yaml"
    for pools, verdict in (("[h100]", "Preempted"), ("[]", None)):
        values.write_text(f"guardedPools: {pools}\nscheduling: {{}}\n")
        said = verdicts(capsys, "-f", file, "--policy", str(values))
        assert said.get("team/pods/chat", {}).get("verdict") == verdict
    assert verdicts(capsys, "-f", file)["team/pods/chat"]["verdict"] == "Preempted"
    assert "queue serving: its foreign pods" in run(capsys, "decide", "-f", file)[1]


@pytest.mark.parametrize("text", ["guardedPools: h100", "dynamicResources: {enabled: maybe}"])
def test_values_of_another_type_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"{text}\nscheduling: {{}}\n")
    file = written(tmp_path, a_pool())
    code, _, error = run(capsys, "decide", "-f", file, "--policy", str(values))
    assert code != 0
    assert "must be" in error
