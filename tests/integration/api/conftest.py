"""The CRDs on the session's control plane, and a client that asks what the server would do.

TrainingJobs are served twice: as the chart installs them, with the rules over the whole spec in a
policy, and as `crds/` has them for whoever installs it alone, under a group of its own.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from tests.integration.api.manifests import manifest
from tests.operator_process import CHART_FILES
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster
from tools.cluster.binaries import ensure_binaries

ROOT = Path(__file__).parents[3]
GROUP, VERSION = "drumline.dev", "v1alpha1"
ALONE = f"alone.{GROUP}"
PLURALS = {"TrainingJob": "trainingjobs", "TrainingQueue": "trainingqueues", "GpuPool": "gpupools"}

Json = dict[str, Any]
Kubectl = Callable[..., str]
Helm = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said: its status code and its message or the object."""

    code: int
    message: str
    body: Json


@dataclass(frozen=True, slots=True)
class Server:
    """Strict requests for our kinds in one namespace."""

    api: client.ApiClient
    namespace: str
    job_group: str = GROUP

    def create(self, manifest: Json, *, dry_run: bool = False) -> Answer:
        return self._send("POST", self._path(manifest), manifest, dry_run=dry_run)

    def replace(self, manifest: Json, *, dry_run: bool = False, subresource: str = "") -> Answer:
        path = f"{self._path(manifest)}/{manifest['metadata']['name']}/{subresource}".rstrip("/")
        return self._send("PUT", path, manifest, dry_run=dry_run)

    def read(self, manifest: Json) -> Answer:
        return self.get(f"{self._path(manifest)}/{manifest['metadata']['name']}")

    def delete(self, manifest: Json) -> Answer:
        path = f"{self._path(manifest)}/{manifest['metadata']['name']}"
        return self._send("DELETE", path, None, dry_run=False)

    def get(self, path: str) -> Answer:
        return self._send("GET", path, None, dry_run=False)

    def _path(self, manifest: Json) -> str:
        plural = PLURALS[manifest["kind"]]
        inside = f"namespaces/{self.namespace}/" if plural == "trainingjobs" else ""
        group = self.job_group if plural == "trainingjobs" else GROUP
        return f"/apis/{group}/{VERSION}/{inside}{plural}"

    def _send(self, method: str, path: str, body: Json | None, *, dry_run: bool) -> Answer:
        if body is not None and body["kind"] == "TrainingJob":
            body = {**body, "apiVersion": f"{self.job_group}/{VERSION}"}
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        response = self.api.call_api(
            method,
            f"{self.api.configuration.host}{path}{query if body is not None else ''}",
            header_params={"Content-Type": "application/json", "Accept": "application/json"},
            body=body,
        )
        answer = json.loads(response.read())
        return Answer(response.status, answer.get("message", ""), answer)


@pytest.fixture(scope="session")
def kubectl(control_plane: Cluster) -> Kubectl:
    """`kubectl` against the session's control plane, which serves our kinds; its output."""
    program = ensure_binaries(["kubectl"], say=print)["kubectl"]

    def run(*arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [program, f"--kubeconfig={control_plane.kubeconfig}", *arguments],
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    folders = [f"--filename={folder}" for folder in CHART_FILES]
    run("apply", "--server-side", "--force-conflicts", *folders)
    wait_until_established(run)
    return run


def wait_until_established(kubectl: Kubectl) -> None:
    """Until all CRDs are served.

    `kubectl wait` fails on a CRD that has no conditions yet, as in the moment after its creation.
    """
    deadline = time.monotonic() + HANG_SECONDS
    while not all(map(_is_established, json.loads(kubectl("get", "crds", "-o", "json"))["items"])):
        assert time.monotonic() < deadline, "a CRD is not established"
        time.sleep(0.2)


def _is_established(crd: Json) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="session")
def helm(control_plane: Cluster) -> Helm:
    """`helm` against the session's control plane; its output."""
    program = ensure_binaries(["helm"], say=print)["helm"]

    def run(*arguments: str | Path) -> str:
        done = subprocess.run(
            [program, f"--kubeconfig={control_plane.kubeconfig}", *arguments],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def as_installed(control_plane: Cluster, kubectl: Kubectl) -> Iterator[Server]:
    """A namespace of these tests' own, and what the chart installs; its policy is in force."""
    name = f"api-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    api = config.new_client_from_config(config_file=str(control_plane.kubeconfig))
    answers = Server(api, name)
    both = manifest("TrainingJob", template={"image": "i"})
    deadline = time.monotonic() + HANG_SECONDS
    while answers.create(both, dry_run=True).code == 201:
        assert time.monotonic() < deadline, "the policy has no effect"
        time.sleep(0.2)  # the API server takes policies in without saying when
    yield answers
    api.close()
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def server(as_installed: Server) -> Server:
    """What the chart installs; modules that hold for CRDs alone too have a `server` of theirs."""
    return as_installed


@pytest.fixture(scope="session")
def alone(as_installed: Server, kubectl: Kubectl) -> Iterator[Server]:
    """TrainingJobs by the CRD that has all rules itself, in a group that no policy is about."""
    crd = yaml.safe_load((ROOT / "crds/trainingjobs.yaml").read_text())
    crd["metadata"]["name"] = f"trainingjobs.{ALONE}"
    crd["spec"]["group"] = ALONE
    del crd["spec"]["names"]["shortNames"]  # `tj` stays the served kind
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(crd))
    wait_until_established(kubectl)
    yield Server(as_installed.api, as_installed.namespace, ALONE)
    kubectl("delete", "crd", crd["metadata"]["name"], "--wait=false")
