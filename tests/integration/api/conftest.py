"""The CRDs on the session's control plane, and a client that asks what the server would do."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from tests.cluster import Cluster
from tests.cluster.binaries import ensure_binaries

ROOT = Path(__file__).parents[3]
GROUP, VERSION = "drumline.dev", "v1alpha1"
PLURALS = {"TrainingJob": "trainingjobs", "TrainingQueue": "trainingqueues", "GpuPool": "gpupools"}

Json = dict[str, Any]
Kubectl = Callable[..., str]


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
        return f"/apis/{GROUP}/{VERSION}/{inside}{plural}"

    def _send(self, method: str, path: str, body: Json | None, *, dry_run: bool) -> Answer:
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

    crds = str(ROOT / "crds")
    run("apply", "--server-side", "--force-conflicts", "-f", crds)
    run("wait", "--for=condition=Established", "--timeout=60s", "-f", crds)
    return run


@pytest.fixture(scope="session")
def server(control_plane: Cluster, kubectl: Kubectl) -> Iterator[Server]:
    """A namespace of these tests' own."""
    name = f"api-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    api = config.new_client_from_config(config_file=str(control_plane.kubeconfig))
    yield Server(api, name)
    api.close()
    kubectl("delete", "namespace", name, "--wait=false")
