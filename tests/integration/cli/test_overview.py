"""Rows of a real API server: all kinds, their refusals, and the same through kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from drumline_cli.program import main
from tests.integration.cli.test_report import ROOT, without_rights
from tests.kube import Kube
from tests.patience import HANG_SECONDS
from tests.unit.cli.manifests import a_manifest, a_running_status
from tools.cluster import Cluster
from tools.cluster.binaries import ensure_binaries
from tools.cluster.rest import Api

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"}


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )


class Terminal:
    """Runs commands in this process: to start a program ten times takes as many seconds."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def rows(self, config: Path, *arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--kubeconfig", str(config), "-o", "json"]) == 0
        done = self._capsys.readouterr()
        assert done.err == ""
        return json.loads(done.out)

    def refusal(self, config: Path, *arguments: str) -> str:
        assert main([*arguments, "--kubeconfig", str(config)]) == 1
        done = self._capsys.readouterr()
        assert done.out == ""
        return done.err


def store(kube: Kube, namespace: str, name: str, *, queue: str, status: dict[str, Any]) -> None:
    manifest = a_manifest(name=name, queue=queue)
    manifest["metadata"] = {"name": name, "namespace": namespace}
    del manifest["status"]
    kube.create(manifest)
    kube.patch_status("trainingjobs", name, status, namespace)


def grant_jobs(cluster: Cluster, namespace: str) -> None:
    """Let the viewer of `without_rights` list the jobs of its namespace, and no more."""
    rules = [{"apiGroups": ["drumline.dev"], "resources": ["trainingjobs"], "verbs": ["list"]}]
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs"}
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}
    binding = {"metadata": {"name": "jobs"}, "roleRef": reference, "subjects": [subject]}
    with Api(cluster.kubeconfig) as api:
        api.request("POST", f"{roles}/roles", {"metadata": {"name": "jobs"}, "rules": rules})
        api.request("POST", f"{roles}/rolebindings", binding)


def test_every_command_says_the_same_of_a_real_cluster(
    control_plane: Cluster, kube: Kube, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Terminal(capsys).rows
    config, unique = control_plane.kubeconfig, uuid.uuid4().hex[:8]
    namespace, queue, pool = (f"{stem}-{unique}" for stem in ("rows", "line", "pool"))
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    spec: dict[str, Any] = {"quotas": [{"gpuPool": pool, "nominalGpus": 64}]}
    drumline = {"apiVersion": "drumline.dev/v1alpha1"}
    kube.create({**drumline, "kind": "TrainingQueue", "metadata": {"name": queue}, "spec": spec})
    spec = {"nodeSelector": {"pool": pool}}
    kube.create({**drumline, "kind": "GpuPool", "metadata": {"name": pool}, "spec": spec})
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{unique}"}}
    node["metadata"]["labels"] = {"pool": pool}
    kube.create(node)
    places = {"gpuPool": pool, "prefix": "", "nodes": [f"node-{unique}"] * 4}
    held = {"until": "2026-11-21T06:00:00Z", "productive": 7200}
    status = a_running_status(assignment=places, gpuSeconds=held)
    store(kube, namespace, "runs", queue=queue, status=status)
    blocked = {"phase": "Pending", "reason": "QuotaExhausted", "queuedAt": "2026-11-21T05:00:00Z"}
    store(kube, namespace, "waits", queue=queue, status=blocked)

    listed = rows(config, "list", "-n", namespace)
    assert [(row["name"], row.get("position")) for row in listed["rows"]] == [
        ("runs", None),
        ("waits", 1),
    ]
    (line,) = rows(config, "queue", queue)["rows"]
    assert line["quotas"] == [{"pool": pool, "nominalGpus": 64, "usedGpus": 32}]
    assert [row["name"] for row in line["waiting"]] == ["waits"]
    (card,) = rows(config, "why", "waits", "-n", namespace)["rows"]
    assert [holder["job"] for holder in card["holders"]] == [f"{namespace}/runs"]
    (seen,) = rows(config, "nodes", "--pool", pool)["rows"]
    assert (seen["jobs"], seen["state"]) == ([f"{namespace}/runs"], "NotReady")
    shares = rows(config, "share")["rows"]
    assert next(row for row in shares if row["queue"] == queue)["usedGpus"] == 32
    used = rows(config, "usage", "--by", "queue")["rows"]
    assert next(row for row in used if row["by"] == [queue])["gpuSeconds"] >= 7200

    kubectl = ensure_binaries(["kubectl"], say=print)["kubectl"]
    plugins = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    arguments = ("drumline", "list", "-n", namespace, "-o", "json")
    done = ran(str(kubectl), *arguments, PATH=plugins, KUBECONFIG=str(config))
    assert done.stderr == ""
    assert [row["name"] for row in json.loads(done.stdout)["rows"]] == ["runs", "waits"]

    viewer = without_rights(control_plane, tmp_path, namespace)
    refusal = Terminal(capsys).refusal(viewer, "list", "-n", namespace)
    assert refusal.startswith(f"drumline: trainingjobs of {namespace}: not allowed to read: ")
    assert refusal.count("\n") == 1
    grant_jobs(control_plane, namespace)
    mine = rows(viewer, "list", "-n", namespace)
    assert [row["name"] for row in mine["rows"]] == ["runs", "waits"]
    assert mine["remarks"][0] == (
        f"Showing only jobs of namespace {namespace}: you may not read other namespaces."
    )
    missing = ("trainingqueues", "priorityclasses", "gpupools")
    starts = [remark.partition(": not allowed")[0] for remark in mine["remarks"][1:]]
    assert starts == [f"Missing here: {kind}" for kind in missing]
