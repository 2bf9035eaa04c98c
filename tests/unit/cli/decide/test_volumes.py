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
