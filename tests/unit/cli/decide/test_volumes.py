"""Volumes that not every node can use: the same answers as the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.texts import missing
from tests.unit.cli.decide.test_command import (
    a_job,
    a_node,
    a_pool,
    a_queue,
    verdicts,
    written,
)

Json = dict[str, Any]
MOUNTED = {
    "image": "any:1",
    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
    "volumeMounts": [{"name": "d", "mountPath": "/data"}],
}
SITE = (a_node("n1", rack="r1"), a_node("n2", rack="r2"), a_pool(), a_queue())


def of(kind: str, name: str, spec: Json, *, version: str = "v1") -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def in_rack(*racks: str) -> Json:
    return {"matchExpressions": [{"key": "rack", "operator": "In", "values": list(racks)}]}


def a_volume(*terms: Json) -> Json:
    return of(
        "PersistentVolume", "pv-1", {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    )


def a_claim(**spec: str) -> Json:
    claim = of("PersistentVolumeClaim", "data", spec)
    return {**claim, "metadata": {"name": "data", "namespace": "team"}}


BOUND = a_claim(volumeName="pv-1")


def a_storage_class(*racks: str) -> Json:
    labels = [{"key": "rack", "values": list(racks)}]
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "zonal"},
        "provisioner": "csi.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": labels}],
    }


def decided(
    folder: Path, capsys: pytest.CaptureFixture[str], *objects: Json, nodes: int = 1
) -> Json:
    job = a_job("reads", nodes=nodes, template=MOUNTED)
    return verdicts(capsys, "-f", written(folder, *SITE, *objects, job))["team/reads"]


FIELD = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}


@pytest.mark.parametrize(
    "objects",
    [
        (a_volume(in_rack("r2")), BOUND),
        (a_volume(in_rack("r9"), in_rack("r2")), BOUND),
        (a_volume(FIELD), BOUND),
        (a_storage_class("r2"), a_claim(storageClassName="zonal")),
    ],
)
def test_a_job_goes_where_its_volume_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objects: tuple[Json, ...]
) -> None:
    assert decided(tmp_path, capsys, *objects)["nodes"] == ["n2"]
    assert decided(tmp_path, capsys, *objects, nodes=2)["verdict"] == "Waits"


@pytest.mark.parametrize(
    "objects",
    [
        (a_volume(), BOUND),
        (a_volume(in_rack("r2")), a_claim(volumeName="pv-2")),
        (a_volume(in_rack("r2")),),
        (a_storage_class("r2"), a_claim(volumeName="pv-3", storageClassName="zonal")),
    ],
)
def test_other_volumes_restrict_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objects: tuple[Json, ...]
) -> None:
    assert decided(tmp_path, capsys, *objects, nodes=2)["verdict"] == "Placed"


ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"


def in_zone(name: str, **labels: str) -> Json:
    node = a_node(name)
    zones = {f"topology.kubernetes.io/{key}": value for key, value in labels.items()}
    return {**node, "metadata": {**node["metadata"], "labels": {**LABELS, **zones}}}


def a_labelled_volume(labels: Json, *terms: Json) -> Json:
    volume = a_volume(*terms)
    return {**volume, "metadata": {"name": "pv-1", "labels": labels}}


LABELS = a_node("n1")["metadata"]["labels"]
ZONES = (in_zone("n1", zone="a", region="r"), in_zone("n2", zone="b", region="r"))


@pytest.mark.parametrize(
    ("volume", "nodes"),
    [
        (a_labelled_volume({ZONE: "b"}), {"n2"}),
        (a_labelled_volume({BETA_ZONE: "b"}), {"n2"}),
        (a_labelled_volume({ZONE: "b__c"}), {"n2"}),
        (a_labelled_volume({ZONE: "b__a"}), {"n1", "n2"}),
        (a_labelled_volume({ZONE: "b__"}), {"n1", "n2"}),
        (a_labelled_volume({ZONE: "b", REGION: "other"}), set[str]()),
        (a_labelled_volume({ZONE: "b"}, in_rack("r1")), {"n2"}),
        (a_labelled_volume({ZONE: "b"}, in_rack("r9")), set[str]()),
        (a_labelled_volume({ZONE: "b"}, {}), set[str]()),
    ],
    ids=["zone", "old label", "zones", "both", "broken", "region", "affinity", "apart", "none"],
)
def test_a_volume_with_zone_labels_is_used_in_its_zones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], volume: Json, nodes: set[str]
) -> None:
    """kube-scheduler compares these labels, so volumes from before node affinity have them."""
    answers = [
        decided(tmp_path, capsys, *ZONES, volume, BOUND, nodes=pods)["verdict"] == "Placed"
        for pods in (1, 2)
    ]
    assert answers == [len(nodes) >= pods for pods in (1, 2)]
    if len(nodes) == 1:
        assert set(decided(tmp_path, capsys, *ZONES, volume, BOUND)["nodes"]) == nodes


def test_nodes_without_zones_can_use_every_labelled_volume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = a_labelled_volume({ZONE: "b"})
    assert decided(tmp_path, capsys, volume, BOUND, nodes=2)["verdict"] == "Placed"


@pytest.mark.parametrize("prefix", ["", "beta."])
def test_a_volume_without_a_class_gets_the_default_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str
) -> None:
    storage = a_storage_class("r2")
    mark = {f"storageclass.{prefix}kubernetes.io/is-default-class": "true"}
    default = {**storage, "metadata": {"name": "zonal", "annotations": mark}}
    assert decided(tmp_path, capsys, default, a_claim())["nodes"] == ["n2"]
    plain = decided(tmp_path, capsys, default, a_claim(storageClassName=""), nodes=2)
    assert plain["verdict"] == "Placed", "an empty name means no class"
    volume = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    scratch = {"name": "d", "ephemeral": {"volumeClaimTemplate": volume}}
    job = a_job("reads", nodes=1, template={**MOUNTED, "volumes": [scratch]})
    rows = verdicts(capsys, "-f", written(tmp_path, *SITE, default, job))
    assert rows["team/reads"]["nodes"] == ["n2"]


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ((a_volume(in_rack("r9")), BOUND), ("volume pv-1", "claim data")),
        (
            (a_storage_class("r9"), a_claim(storageClassName="zonal")),
            ("storage class zonal", "claim data"),
        ),
    ],
)
def test_the_refusal_names_claim_and_volume(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    objects: tuple[Json, ...],
    words: tuple[str, ...],
) -> None:
    waits = decided(tmp_path, capsys, *objects)
    assert waits["reason"] == "NodesUnavailable"
    assert not missing(waits["message"], *words)


def a_disk(name: str = "pv-1", driver: str = "disks.example.com") -> Json:
    volume = of("PersistentVolume", name, {"csi": {"driver": driver, "volumeHandle": name}})
    return {**volume, "metadata": {"name": name}}


def a_csi_node(name: str, **limits: int) -> Json:
    drivers = [
        {"name": f"{driver}.example.com", "nodeID": name, "allocatable": {"count": count}}
        for driver, count in limits.items()
    ]
    unlimited = {"name": "files.example.com", "nodeID": name}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [*drivers, unlimited]},
    }


def a_user(node: str, *claims: str, **status: str) -> Json:
    """Return a pod without GPUs that mounts claims."""
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    pod = of("Pod", f"on-{node}", {"nodeName": node, "containers": [], "volumes": volumes})
    metadata = {"name": f"on-{node}", "namespace": "team"}
    return {**pod, "metadata": metadata, "status": {"phase": "Running", **status}}


def other_disks(*names: str) -> list[Json]:
    claims = [a_claim(volumeName=f"pv-{name}") for name in names]
    named = [
        {**claim, "metadata": {"name": name, "namespace": "team"}}
        for claim, name in zip(claims, names, strict=True)
    ]
    return [*(a_disk(f"pv-{name}") for name in names), *named]


LIMITED = (a_disk(), BOUND, *other_disks("a", "b"), a_csi_node("n1", disks=2))


@pytest.mark.parametrize(
    ("objects", "nodes"),
    [
        ([a_user("n1", "a", "b")], ["n2"]),
        ([a_user("n1", "a")], ["n1", "n2"]),
        ([a_user("n1", "a", "b", phase="Succeeded")], ["n1", "n2"]),
        ([a_user("n1", "a", "data")], ["n1", "n2"]),
        ([a_user("n1", "a", "data"), a_csi_node("n2", disks=0)], ["n1"]),
        ([a_user("n2", "a", "b")], ["n1", "n2"]),
        ([a_user("n1", "a", "b"), a_disk(driver="files.example.com")], ["n1", "n2"]),
    ],
    ids=["reached", "room", "has ended", "attached", "none", "no limit", "other driver"],
)
def test_a_node_that_can_attach_no_more_volumes_is_not_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objects: list[Json], nodes: list[str]
) -> None:
    single = decided(tmp_path, capsys, *LIMITED, *objects)
    assert (single["verdict"], set(single["nodes"]) <= {*nodes}) == ("Placed", True)
    both = decided(tmp_path, capsys, *LIMITED, *objects, nodes=2)
    assert (both["verdict"] == "Placed") == (len(nodes) == 2)


def test_the_refusal_names_the_driver_that_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = [a_csi_node(name, disks=0) for name in ("n1", "n2")]
    waits = decided(tmp_path, capsys, *LIMITED, *full)
    assert waits["reason"] == "NodesUnavailable"
    assert not missing(waits["message"], "limit of attached volumes", "disks.example.com")


@pytest.mark.parametrize(("limit", "verdict"), [(2, "Placed"), (1, "Waits")])
def test_a_claim_that_is_made_for_each_pod_counts_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int, verdict: str
) -> None:
    """n1 has GPUs for two pods. Each pod gets a volume of the limited driver."""
    scratch = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "disks",
                        "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    template = {
        "image": "any:1",
        "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": scratch}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    storage = {**a_storage_class(), "metadata": {"name": "disks"}, "allowedTopologies": []}
    storage["provisioner"] = "disks.example.com"
    job = a_job("reads", nodes=2, gpusPerNode=4, nodeSelector={"rack": "r1"}, template=template)
    objects = (*SITE, storage, a_csi_node("n1", disks=limit), job)
    assert verdicts(capsys, "-f", written(tmp_path, *objects))["team/reads"]["verdict"] == verdict


@pytest.mark.parametrize(("limit", "started"), [(2, 2), (1, 1)])
def test_jobs_of_one_cycle_do_not_attach_more_than_a_node_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int, started: int
) -> None:
    """n1 has GPUs for both jobs. Each job attaches another disk."""
    jobs: list[Json] = []
    for name in ("a", "b"):
        volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": name}}]
        template = {**MOUNTED, "volumes": volumes}
        fields = {"gpusPerNode": 4, "nodeSelector": {"rack": "r1"}, "template": template}
        jobs.append(a_job(f"reads-{name}", **fields))
    objects = (*SITE, *other_disks("a", "b"), a_csi_node("n1", disks=limit), *jobs)
    rows = verdicts(capsys, "-f", written(tmp_path, *objects))
    placed = [row for row in rows.values() if row["verdict"] == "Placed"]
    assert len(placed) == started
    for row in rows.values():
        assert row in placed or "volumes beside those of other jobs" in row["message"]
