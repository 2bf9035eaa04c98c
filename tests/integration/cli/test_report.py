"""`drumline report` against a real API server: its words, its selectors, its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kube import Kube
from tests.patience import HANG_SECONDS
from tests.unit.cli.manifests import a_manifest, a_running_status, an_event, an_incident
from tools.cluster import Cluster
from tools.cluster.rest import Api

pytestmark = pytest.mark.extended(keep=2)

ROOT = Path(__file__).parents[3]


def report(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drumline", "report", "--kubeconfig", str(kubeconfig), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )


def stored_job(kube: Kube, namespace: str, name: str) -> dict[str, Any]:
    manifest = a_manifest(name=name)
    manifest["metadata"] = {"name": name, "namespace": namespace}
    del manifest["status"]
    kube.create(manifest)
    status = a_running_status(lastIncident=an_incident())
    return kube.patch_status("trainingjobs", name, status, namespace)


def store_event(cluster: Cluster, job: dict[str, Any]) -> None:
    metadata = job["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    regarding = {
        "apiVersion": job["apiVersion"],
        "kind": "TrainingJob",
        "name": name,
        "namespace": namespace,
        "uid": metadata["uid"],
    }
    event = an_event(
        metadata={"name": f"{name}.1", "namespace": namespace},
        regarding=regarding,
        eventTime="2026-11-21T06:41:19.000000Z",
        action="Replace",
        reportingController="drumline.dev/operator",
        reportingInstance="operator-0",
    )
    del event["deprecatedLastTimestamp"]
    with Api(cluster.kubeconfig) as api:
        api.request("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event)


def without_rights(cluster: Cluster, folder: Path, namespace: str) -> Path:
    """A kubeconfig of a service account that may nothing."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    with Api(cluster.kubeconfig) as api:
        api.request("POST", accounts, {"metadata": {"name": "viewer"}})
        answer = api.request("POST", f"{accounts}/viewer/token", {"spec": {}})
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    file = folder / "viewer"
    file.write_text(json.dumps(config))
    return file


def test_a_job_is_reported_with_its_own_events_alone(
    control_plane: Cluster, kube: Kube, namespace: str
) -> None:
    store_event(control_plane, stored_job(kube, namespace, "llama"))
    store_event(control_plane, stored_job(kube, namespace, "llama-2"))
    done = report(control_plane.kubeconfig, "llama", "-n", namespace, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["namespace"], shown["name"], shown["phase"]) == (namespace, "llama", "Running")
    assert [incident["number"] for incident in shown["incidents"]] == ["3.0"]
    assert [event["reason"] for event in shown["events"]] == ["MemberReplaced"]
    assert shown["remarks"] == []


def test_what_kubectl_prints_is_reported_the_same(
    control_plane: Cluster, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    stored = stored_job(kube, namespace, "llama")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(stored, indent=4))
    from_file = subprocess.run(
        [sys.executable, "-m", "drumline", "report", "-f", str(file), "-o", "json"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    done = report(control_plane.kubeconfig, "llama", "-n", namespace, "-o", "json")
    for field in ("sentence", "incidents", "shares", "next_steps"):
        assert json.loads(from_file.stdout)[field] == json.loads(done.stdout)[field]


def test_a_job_that_does_not_exist(control_plane: Cluster, kube: Kube, namespace: str) -> None:
    del kube
    done = report(control_plane.kubeconfig, "none", "-n", namespace)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"drumline: trainingjob 'none' not found in namespace '{namespace}'\n"


def test_a_reader_without_rights(
    control_plane: Cluster, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    stored_job(kube, namespace, "llama")
    viewer = without_rights(control_plane, tmp_path, namespace)
    done = report(viewer, "llama", "-n", namespace)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"drumline: trainingjob {namespace}/llama: not allowed to read: trainingjobs.drumline.dev"
        f' "llama" is forbidden: User "system:serviceaccount:{namespace}:viewer" cannot get'
    )
    assert done.stderr.count("\n") == 1
