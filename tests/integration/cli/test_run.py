"""`drumline run` against a real API server: what is stored, who owns it, what is refused."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from drumline_agent.programs.unpack_code import CodeFile, code_entries
from tests.kube import Kube
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster

pytestmark = pytest.mark.extended(keep=2)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def drumline(kubeconfig: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, *rest = arguments
    return subprocess.run(
        [sys.executable, "-m", "drumline", command, "--kubeconfig", str(kubeconfig), *rest],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "DRUMLINE_IMAGE": "pytorch/pytorch:2",
            "DRUMLINE_QUEUE": "research",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )


def test_equal_code_of_two_jobs_is_stored_once_and_owned_by_both(
    control_plane: Cluster, kube: Kube, namespace: str, folder: Path
) -> None:
    config = control_plane.kubeconfig
    for name in ("a", "b"):
        done = drumline(
            *(config, folder, "run", "-d", "-n", namespace, "--name", name, "-N2", "-G8"),
            *("--", "python", "train.py", "--lr", "3e-4"),
        )
        assert (done.returncode, done.stderr) == (0, "")
    jobs = [kube.get("trainingjobs", name, namespace) for name in ("a", "b")]
    (code,) = {str(job["spec"]["template"]["code"]["configMaps"]) for job in jobs}
    (name,) = yaml.safe_load(code)
    stored = kube.get("configmaps", name, namespace)
    owners = {owner["uid"] for owner in stored["metadata"]["ownerReferences"]}
    assert owners == {job["metadata"]["uid"] for job in jobs}
    packed = base64.b64decode(stored["binaryData"]["part"])
    (entry,) = code_entries(packed, digest=jobs[0]["spec"]["template"]["code"]["digest"])
    assert isinstance(entry, CodeFile)
    assert (entry.path, bytes(entry.content)) == ("train.py", b"print(1)\n")


def test_what_a_dry_run_prints_is_what_the_api_server_takes(
    control_plane: Cluster, kube: Kube, namespace: str, folder: Path
) -> None:
    done = drumline(
        *(control_plane.kubeconfig, folder, "run", "--dry-run", "-n", namespace, "--name", "a"),
        *("--claim", "corpus=/data", "--", "torchrun", "train.py", "--lr", "3e-4"),
    )
    for document in yaml.safe_load_all(done.stdout):
        kube.create(document)
    spec = kube.get("trainingjobs", "a", namespace)["spec"]
    assert spec["template"]["command"] == ["torchrun", "train.py", "--lr", "3e-4"]
    assert spec["template"]["launch"] == "PerPod"


def test_a_refused_job_leaves_no_code_behind(
    control_plane: Cluster, kube: Kube, namespace: str, folder: Path
) -> None:
    arguments = ("run", "-n", namespace, "--name", "taken", "--detach", "--", "python", "train.py")
    kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "taken", "namespace": namespace},
            "spec": {"queue": "q", "template": {"image": "any:1", "command": ["true"]}},
        }
    )
    done = drumline(control_plane.kubeconfig, folder, *arguments)
    assert done.returncode == 2
    assert "taken" in done.stderr
    left = [each["metadata"]["name"] for each in kube.list("configmaps", namespace)]
    assert [name for name in left if name.startswith("drumline-code")] == []


def test_a_clone_owns_the_code_too(
    control_plane: Cluster, kube: Kube, namespace: str, folder: Path
) -> None:
    config = control_plane.kubeconfig
    drumline(
        *(config, folder, "run", "-d", "-n", namespace, "--name", "a", "--", "python", "train.py")
    )
    done = drumline(
        *(config, folder, "clone", "-n", namespace, "a", "--name", "b", "--set", "nodes=2"),
        *("--", "python", "train.py", "--lr", "1e-4"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    jobs = [kube.get("trainingjobs", name, namespace) for name in ("a", "b")]
    assert [job["spec"]["nodes"] for job in jobs] == [1, 2]
    assert jobs[1]["spec"]["template"]["command"][-1] == "1e-4"
    codes = [job["spec"]["template"]["code"] for job in jobs]
    assert codes[0] == codes[1]
    stored = kube.get("configmaps", codes[0]["configMaps"][0], namespace)
    owners = {owner["uid"] for owner in stored["metadata"]["ownerReferences"]}
    assert owners == {job["metadata"]["uid"] for job in jobs}
