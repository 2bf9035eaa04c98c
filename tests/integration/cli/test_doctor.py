"""`drumline doctor` on a real API server: what it reads there, and what it says without rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.kube import Kube
from tests.operator_process import prepare
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster
from tools.cluster.rest import Api
from tools.generate.cli_schemas import schema

ROOT = Path(__file__).parents[3]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
AHEAD = timedelta(seconds=90)


@pytest.fixture
def site(control_plane: Cluster) -> Iterator[str]:
    """A node whose labels promise GPUs and whose clock is ahead, in a pool of its own."""
    name = f"doctor-{uuid.uuid4().hex[:8]}"
    kube = Kube(control_plane.kubeconfig)
    prepare(kube)
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", "at": name}},
        }
    )
    kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"at": name}},
        }
    )
    renewed = (datetime.now(UTC) + AHEAD).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with Api(control_plane.kubeconfig) as api:
        lease = {"metadata": {"name": name}, "spec": {"renewTime": renewed}}
        api.request("POST", LEASES, lease)
        yield name
        api.request("DELETE", f"{LEASES}/{name}")
        api.request("DELETE", f"/apis/drumline.dev/v1alpha1/gpupools/{name}")
        api.request("DELETE", f"/api/v1/nodes/{name}")
    kube.close()


def doctor(kubeconfig: Path) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit code and the findings by check."""
    done = subprocess.run(
        [sys.executable, "-m", "drumline", "doctor", "--kubeconfig", str(kubeconfig), "-o", "json"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert done.stderr == ""
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema()).validate(document)
    findings: dict[str, list[dict[str, str]]] = {}
    for row in document["findings"]:
        findings.setdefault(row["check"], []).append(row)
    return done.returncode, findings


def test_what_is_wrong_is_named_with_its_fix(control_plane: Cluster, site: str) -> None:
    code, findings = doctor(control_plane.kubeconfig)
    assert code == 1
    assert [row["verdict"] for row in findings["Kubernetes"]] == ["ok"]
    assert {row["verdict"] for row in findings["Custom resources"]} == {"ok"}
    assert len(findings["Custom resources"]) == 3
    failed = [row for rows in findings.values() for row in rows if row["verdict"] == "failed"]
    about = {row["check"]: row["message"] for row in failed if site in row["message"]}
    assert about.keys() >= {"Clocks", "Pools"}
    assert f"({site}) of pool {site} offer no nvidia.com/gpu" in about["Pools"]
    assert all(row["fix"] for row in failed)
    assert not any(row["verdict"] == "unknown" for rows in findings.values() for row in rows)


def test_without_rights_each_check_says_what_it_may_not_read(
    control_plane: Cluster, site: str, tmp_path: Path
) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    with Api(control_plane.kubeconfig) as api:
        api.request("POST", accounts, {"metadata": {"name": site}})
        answer = api.request("POST", f"{accounts}/{site}/token", {"spec": {}})
    config: dict[str, Any] = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    file = tmp_path / "viewer"
    file.write_text(json.dumps(config))
    code, findings = doctor(file)
    assert code == 0
    assert [row["verdict"] for row in findings["Kubernetes"]] == ["ok"]
    assert {row["verdict"] for row in findings["GPUs"]} == {"unknown"}
    assert "not allowed to read: nodes is forbidden" in findings["GPUs"][0]["message"]
