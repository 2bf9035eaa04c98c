"""What is left of a job when its namespace is gone: from the archiver's pod, as a user reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.site import VALUES, Site, close_site, open_site
from tests.kube import Kube
from tools import install
from tools.cluster import Cluster, kubectl
from tools.cluster.binaries import ensure_binaries
from tools.cluster.images import TRAINER_IMAGE
from tools.cluster.volumes import bind_folder
from tools.install import SYSTEM_NAMESPACE

pytestmark = pytest.mark.extended

ARCHIVER = "deployment/drumline-archiver"
CLAIM = "archive"


@pytest.fixture
def archiver(cluster: Cluster, drumline: Kube) -> Iterator[None]:
    """The chart with an archive on a claim, and without it again."""
    folder = cluster.folder / "archive"
    bind_folder(cluster, namespace=SYSTEM_NAMESPACE, claim=CLAIM, host_path=folder)
    archive = {"enabled": True, "existingClaim": CLAIM, "logs": True}
    install.install(cluster, say=print, progress_seconds=1, values={**VALUES, "archive": archive})
    yield
    install.install(cluster, say=print, progress_seconds=1, values=VALUES)
    drumline.wait(
        "deployments", "drumline-archiver", SYSTEM_NAMESPACE, lambda deployment: deployment is None
    )


def history(cluster: Cluster, *arguments: str) -> str:
    command = ("exec", "--namespace", SYSTEM_NAMESPACE, ARCHIVER, "--")
    return kubectl(cluster, *command, "python3", "-m", "drumline", "history", *arguments)


def until_archived(cluster: Cluster, key: str) -> None:
    """Follow the archiver's log until it says so."""
    binary = ensure_binaries(["kubectl"], say=print)["kubectl"]
    command = [binary, f"--kubeconfig={cluster.kubeconfig}", "logs", "--follow", ARCHIVER]
    command += ["--namespace", SYSTEM_NAMESPACE, "--pod-running-timeout=60s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        seen: list[str] = []
        for line in follower.stdout:
            seen.append(line)
            if '"job_archived"' in line and json.loads(line)["job"] == key:
                follower.kill()
                return
    raise AssertionError("".join(seen))


@pytest.mark.usefixtures("archiver")
def test_a_job_and_its_last_lines_outlive_its_namespace(cluster: Cluster, drumline: Kube) -> None:
    site: Site = open_site(cluster, drumline)
    template = {"image": TRAINER_IMAGE, "command": ["sh", "-c", "echo the last line of $HOSTNAME"]}
    site.submit("brief", nodes=2, gpusPerNode=1, template=template)
    site.finish("brief")
    until_archived(cluster, f"{site.namespace}/brief")
    close_site(site)
    drumline.wait(
        "namespaces", site.namespace, None, lambda namespace: namespace is None, seconds=180
    )

    rows = json.loads(history(cluster, "-o", "json", "-n", site.namespace))["rows"]
    assert [(row["name"], row["phase"]) for row in rows] == [("brief", "Succeeded")]
    assert rows[0]["gpuSeconds"] > 0
    assert "Succeeded" in history(cluster, "brief", "-n", site.namespace)
    lines = history(cluster, "brief", "-n", site.namespace, "--logs")
    for index in (0, 1):
        assert f"the last line of brief-{index}\n" in lines
