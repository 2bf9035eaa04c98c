"""Claims that are not bound, in use, or being provisioned: the same answers as the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.lifecycle.plan.claims import NO_PROVISIONER
from tests.texts import missing
from tests.unit.cli.decide.test_command import (
    a_class,
    a_job,
    a_node,
    a_pool,
    a_queue,
    placed_on,
    verdicts,
    written,
)
from tests.unit.cli.decide.test_volumes import (
    BOUND,
    MOUNTED,
    SITE,
    a_claim,
    a_csi_node,
    a_storage_class,
    a_user,
    a_volume,
    decided,
    in_rack,
    of,
    other_disks,
)

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
OWN_ZONE = "topology.disks.example.com/zone"
SELECTED = "volume.kubernetes.io/selected-node"


def in_zone(name: str, zone: str, *, key: str = ZONE) -> Json:
    node = a_node(name)
    node["metadata"]["labels"][key] = zone
    return node


def being_made_for(node: str) -> tuple[Json, ...]:
    claim = a_claim(storageClassName="zonal")
    claim["metadata"]["annotations"] = {SELECTED: node}
    storage = a_storage_class()
    return {**storage, "allowedTopologies": None}, claim


def topology(node: str, *keys: str) -> Json:
    driver = {"name": "csi.example.com", "nodeID": node, "topologyKeys": list(keys)}
    return of("CSINode", node, {"drivers": [driver]}, version="storage.k8s.io/v1")


def driver(*, attaches: bool) -> Json:
    spec = {"attachRequired": attaches}
    return of("CSIDriver", "csi.example.com", spec, version="storage.k8s.io/v1")


TWO_ZONES = (in_zone("n1", "a"), in_zone("n2", "b"), in_zone("n3", "b"))
ALIKE = tuple(map(a_node, ("n1", "n2", "n3")))
OWN_ZONES = tuple(in_zone(f"n{number}", "ab"[number > 1], key=OWN_ZONE) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("nodes", "csi", "expected"),
    [
        (TWO_ZONES, (), ["n2", "n3"]),
        (OWN_ZONES, (topology("n3", OWN_ZONE),), ["n2", "n3"]),
        (TWO_ZONES, (topology("n3"),), ["n1", "n2", "n3"]),
        (ALIKE, (), ["n1", "n2", "n3"]),
        (TWO_ZONES, (topology("n3", "unknown"),), ["n3"]),
    ],
    ids=["zone", "labels of the driver", "any node", "nothing known", "label missing"],
)
def test_a_job_goes_to_the_zone_for_which_its_volume_is_being_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    nodes: tuple[Json, ...],
    csi: tuple[Json, ...],
    expected: list[str],
) -> None:
    objects = (*nodes, *csi, a_pool(), a_queue(64), *being_made_for("n3"))
    most = len(expected)
    file = written(tmp_path, *objects, a_job("reads", nodes=most, template=MOUNTED))
    assert verdicts(capsys, "-f", file)["team/reads"]["nodes"] == expected
    if most < 3:
        file = written(tmp_path, *objects, a_job("reads", nodes=most + 1, template=MOUNTED))
        waits = verdicts(capsys, "-f", file)["team/reads"]
        assert not missing(waits["message"], "claim data", "made for node n3")


def test_a_volume_of_one_node_is_used_there_if_its_topology_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, claim = being_made_for("n3")
    claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    job = a_job("reads", nodes=1, template=MOUNTED)
    file = written(tmp_path, *ALIKE, storage, claim, a_pool(), a_queue(64), job)
    assert verdicts(capsys, "-f", file)["team/reads"]["nodes"] == ["n3"]


def of_mode(mode: str, **metadata: str) -> Json:
    claim = a_claim(volumeName="pv-1")
    claim["spec"]["accessModes"] = [mode]
    claim["metadata"] |= metadata
    return claim


def runs(name: str, node: str) -> Json:
    return a_job(name, nodes=1, status=placed_on(node))


def answers(
    folder: Path, capsys: pytest.CaptureFixture[str], *objects: Json
) -> dict[str, tuple[str, list[str]]]:
    rows = verdicts(capsys, "-f", written(folder, *objects))
    return {name: (row["verdict"], row.get("nodes", [])) for name, row in sorted(rows.items())}


@pytest.mark.parametrize(
    ("mode", "second"),
    [
        ("ReadWriteOncePod", ("Waits", [])),
        ("ReadWriteOnce", ("Placed", ["n1"])),
        ("ReadWriteMany", ("Placed", ["n1"])),
    ],
)
def test_two_jobs_of_one_cycle_do_not_take_one_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, second: tuple[str, list[str]]
) -> None:
    half = {"gpusPerNode": 4, "template": MOUNTED}
    jobs = [a_job(name, **half) for name in ("a", "b")]
    said = answers(tmp_path, capsys, *SITE, a_volume(), of_mode(mode), *jobs)
    assert said == {"team/a": ("Placed", ["n1"]), "team/b": second}
    whole = [a_job(name, nodes=1, template=MOUNTED) for name in ("a", "b")]
    said = answers(tmp_path, capsys, *SITE, a_volume(), of_mode(mode), *whole)
    assert (said["team/b"] == ("Placed", ["n2"])) == (mode == "ReadWriteMany")


@pytest.mark.parametrize("mode", ["ReadWriteOncePod", "ReadWriteOnce"])
@pytest.mark.parametrize("free", [True, False])
def test_a_claim_is_kept_for_a_job_that_waits_for_its_victims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, *, free: bool
) -> None:
    """The second job would evict another in vain, or keep the first one from its claim."""
    fields = {"nodes": 1, "template": MOUNTED}
    first = a_job("a", priorityClassName="high", nodeSelector={"rack": "r1"}, **fields)
    second = a_job("b", priorityClassName="high", nodeSelector={"rack": "r2"}, **fields)
    running = [runs("x", "n1"), *(() if free else [runs("y", "n2")])]
    site = (*SITE, a_class("high", 5), a_volume(), of_mode(mode), *running)
    said = answers(tmp_path, capsys, *site, first, second)
    assert said == {
        "team/a": ("Waits", ["n1"]),
        "team/b": ("Waits", []),
        "team/x": ("Preempted", []),
    }


@pytest.mark.parametrize(("limit", "evicted"), [(1, 1), (2, 2)])
def test_a_node_keeps_room_for_the_volume_of_a_job_that_waits_for_its_victims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int, evicted: int
) -> None:
    """Both jobs need n1, which attaches another disk for each."""
    low = [a_job(name, gpusPerNode=4, nodes=1, status=placed_on("n1")) for name in ("x", "y")]
    high = [
        a_job(
            f"reads-{name}",
            gpusPerNode=4,
            nodes=1,
            priorityClassName="high",
            nodeSelector={"rack": "r1"},
            template={
                **MOUNTED,
                "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": name}}],
            },
        )
        for name in ("a", "b")
    ]
    site = (*SITE, a_class("high", 5), *other_disks("a", "b"), a_csi_node("n1", disks=limit))
    said = answers(tmp_path, capsys, *site, *low, *high)
    assert sum(verdict == "Preempted" for verdict, _ in said.values()) == evicted


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ([{**BOUND, "metadata": {"name": "other", "namespace": "team"}}], '"data" not found'),
        ([of_mode("ReadWriteMany", deletionTimestamp="2026-01-01T00:00:00Z")], "being deleted"),
        ([of_mode("ReadWriteOnce")], "ReadWriteOnce, but pods of the job on 2 nodes"),
        ([of_mode("ReadWriteOncePod")], "ReadWriteOncePod, but 2 pods"),
        ([a_claim(volumeName="pv-1", volumeMode="Block")], "volume mode Block"),
        ([of_mode("ReadWriteMany")], ""),
        ([], ""),
    ],
)
def test_no_job_is_evicted_for_pods_that_cannot_use_their_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], claims: list[Json], words: str
) -> None:
    job = a_job("reads", nodes=2, priorityClassName="high", template=MOUNTED)
    running = (runs("x", "n1"), runs("y", "n2"))
    file = written(tmp_path, *SITE, a_class("high", 5), a_volume(), *claims, *running, job)
    rows = verdicts(capsys, "-f", file)
    assert ("team/x" in rows) == (not words)
    assert words in rows["team/reads"]["message"]


def test_a_node_that_is_gone_restricts_no_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert decided(tmp_path, capsys, *being_made_for("gone"), nodes=2)["verdict"] == "Placed"


def test_volumes_without_a_common_node_are_named_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**a_claim(volumeName="pv-2"), "metadata": {"name": "more", "namespace": "team"}}
    second = {**a_volume(in_rack("r2")), "metadata": {"name": "pv-2"}}
    template = {
        "image": "any:1",
        "volumes": [
            *MOUNTED["volumes"],
            {"name": "m", "persistentVolumeClaim": {"claimName": "more"}},
        ],
    }
    objects = (*SITE, a_volume(in_rack("r1")), BOUND, second, other)
    file = written(tmp_path, *objects, a_job("reads", template=template))
    waits = verdicts(capsys, "-f", file)["team/reads"]
    assert waits["reason"] == "NodesUnavailable"
    assert not missing(
        waits["message"], "no node reaches all", "volume pv-1 of claim data", "pv-2 of claim more"
    )


@pytest.mark.parametrize(
    ("mode", "users", "drivers", "expected"),
    [
        ("ReadWriteOnce", ("n2",), (), ["n2"]),
        ("ReadWriteOnce", (), (), ["n1"]),
        ("ReadWriteMany", ("n2",), (), ["n1"]),
        ("ReadWriteOnce", ("n2",), (False,), ["n1"]),
        ("ReadWriteOnce", ("n2",), (True,), ["n2"]),
    ],
)
def test_a_claim_with_read_write_once_is_used_on_the_node_of_its_user(  # noqa: PLR0917 - fixtures
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    users: tuple[str, ...],
    drivers: tuple[bool, ...],
    expected: list[str],
) -> None:
    objects = [driver(attaches=attaches) for attaches in drivers]
    claim = a_claim(volumeName="pv-1")
    claim["spec"]["accessModes"] = [mode]
    volume = of(
        "PersistentVolume", "pv-1", {"csi": {"driver": "csi.example.com", "volumeHandle": "1"}}
    )
    pods = (a_user(node, "data") for node in users)
    assert decided(tmp_path, capsys, claim, volume, *objects, *pods)["nodes"] == expected


def test_a_claim_with_users_on_several_nodes_serves_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = a_claim(volumeName="pv-1")
    claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    pods = [a_user(node, "data") for node in ("n1", "n2")]
    assert decided(tmp_path, capsys, claim, *pods, nodes=2)["verdict"] == "Placed"
    assert decided(tmp_path, capsys, claim, pods[0], nodes=2)["verdict"] == "Waits"


def test_a_job_whose_selector_names_no_node_evicts_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    low = a_job("low", nodes=2, status=placed_on("n1", "n2"))
    fields: Json = {"nodeSelector": {"none": "such"}, "priorityClassName": "high"}
    site = (*SITE[:-1], a_queue(64), a_class("high", 9))
    objects = (*site, low, a_job("high", nodes=2, **fields))
    waits = verdicts(capsys, "-f", written(tmp_path, *objects))["team/high"]
    assert (waits["verdict"], waits["reason"]) == ("Waits", "NodesUnavailable")


@pytest.mark.parametrize("source", ["nfs", "hostPath", "local"])
def test_a_volume_that_no_node_attaches_is_used_beside_its_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    claim = a_claim(volumeName="pv-1")
    claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    volume = of("PersistentVolume", "pv-1", {source: {"path": "/data"}})
    assert decided(tmp_path, capsys, claim, volume, a_user("n2", "data"))["nodes"] == ["n1"]


def test_a_claim_for_one_pod_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = a_claim(volumeName="pv-1")
    claim["spec"]["accessModes"] = ["ReadWriteOncePod"]
    waits = decided(tmp_path, capsys, claim, a_user("n2", "data"))
    assert (waits["verdict"], waits["reason"]) == ("Waits", "ClaimInUse")
    assert not missing(waits["message"], "claim data", "pod on-n2", "node n2")
    ended = decided(tmp_path, capsys, claim, a_user("n2", "data", phase="Succeeded"))
    assert ended["verdict"] == "Placed"


@pytest.mark.parametrize(
    ("spec", "phase", "evicts"),
    [
        ({"volumeName": "pv-1"}, "Bound", True),
        ({"volumeName": "pv-1"}, "Pending", False),
        ({}, "Pending", False),
        ({"storageClassName": "zonal"}, "Pending", True),
        ({"storageClassName": "at-once"}, "Pending", False),
        ({"storageClassName": "local"}, "Pending", False),
    ],
)
def test_a_job_evicts_nobody_while_a_claim_has_no_volume(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spec: dict[str, str],
    phase: str,
    evicts: bool,
) -> None:
    zonal = a_storage_class("r1", "r2")
    at_once = {**zonal, "metadata": {"name": "at-once"}, "volumeBindingMode": "Immediate"}
    local = {**zonal, "metadata": {"name": "local"}, "provisioner": NO_PROVISIONER}
    claim = {**a_claim(**spec), "status": {"phase": phase}}
    low = a_job("low", nodes=2, status=placed_on("n1", "n2"))
    high = a_job("high", nodes=2, template=MOUNTED, priorityClassName="high")
    objects = (*SITE, zonal, at_once, local, claim, a_class("high", 9), low, high)
    answer = verdicts(capsys, "-f", written(tmp_path, *objects))
    waits = answer["team/high"]
    assert (waits["reason"] == "WaitingForVictims") == evicts
    if not evicts:
        assert not missing(waits["message"], "evicts no other job", "data", "is not bound")
