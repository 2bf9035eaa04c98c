"""The operator before this one, this one, and that one again, with jobs running throughout.

`make test-all WHAT=upgrade` runs it. The operator before is that of the newest tag, or of
the commit below while there is none, from the history of this repository; DRUMLINE_PREVIOUS_TREE
names an unpacked source tree instead, for a checkout without history.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, Kube, phase_is
from tests.operator_process import ROOT, OperatorProcess
from tools.cluster.kwok import fake_node

pytestmark = pytest.mark.usefixtures("no_operator")

PREVIOUS = "a6fe139"
"""While no version is tagged."""
GANGS = 4
SINGLES = 96
NODES_FOR_SINGLES = SINGLES // 8 + 1  # and a free one


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the operator before this one."""
    given = os.environ.get("DRUMLINE_PREVIOUS_TREE")
    if given:
        return Path(given)
    tag = _git("describe", "--tags", "--abbrev=0", "HEAD^")
    commit = tag.stdout.decode().strip() if tag.returncode == 0 else PREVIOUS
    archive = _git("archive", commit, "operator", "trainer", "crds")
    if archive.returncode != 0:
        pytest.skip(
            f"this checkout has no history with {commit}: name an unpacked tree of the version"
            " before in DRUMLINE_PREVIOUS_TREE"
        )
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)


@pytest.fixture
def crds(api: Kube) -> Iterator[Any]:
    """Installs the CRDs of a tree; in the end those of this one are there again."""

    def install(tree: Path) -> None:
        for path in sorted((tree / "crds").glob("*.yaml")):
            crd = yaml.safe_load(path.read_text())
            name = crd["metadata"]["name"]
            api.patch("customresourcedefinitions", name, {"spec": crd["spec"]})

    yield install
    install(ROOT)


@pytest.fixture
def wide_site(site: Site) -> Iterator[Site]:
    """The site with nodes for all jobs."""
    names: list[str] = []
    for offset in range(NODES_FOR_SINGLES):
        node = fake_node(90_000 + offset, gpus=8, nodes_per_rack=4)
        node["metadata"]["labels"]["drumline.test/site"] = site.pool
        site.kube.create(node)
        names.append(node["metadata"]["name"])
    quotas = [{"gpuPool": site.pool, "nominalGpus": 8 * (NODES_FOR_SINGLES + GANGS)}]
    site.kube.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas}})
    yield site
    for name in names:
        site.kube.delete("nodes", name)


def lives(site: Site) -> tuple[dict[str, str], dict[str, Any]]:
    """What an upgrade must not change: the pods by name, and what the jobs' statuses say."""
    pods = {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in site.kube.list("pods", site.namespace)
    }
    said = ("phase", "generation", "restarts", "assignment", "ready", "startedAt")
    statuses = {
        job["metadata"]["name"]: {name: job["status"].get(name) for name in said}
        for job in site.kube.list("trainingjobs", site.namespace)
    }
    return pods, statuses


def test_jobs_do_not_notice_an_upgrade_and_the_way_back(
    api: Kube, wide_site: Site, previous: Path, crds: Any, tmp_path: Path
) -> None:
    site = wide_site
    epochs: list[int] = []
    before: tuple[dict[str, str], dict[str, Any]] = {}, {}
    with ExitStack() as agents:
        for number, tree in enumerate((previous, ROOT, previous)):
            crds(tree)
            folder = tmp_path / str(number)
            folder.mkdir()
            operator = OperatorProcess(kubeconfig=api.kubeconfig, folder=folder, tree=tree)
            operator.start()
            try:
                if number == 0:
                    _start_all(site, agents)
                    before = lives(site)
                _do_a_days_work(site, number)
            finally:
                operator.stop()
            assert lives(site) == before, f"after operator {number}"
            errors = [line["event"] for line in operator.log if line.get("level") == "error"]
            # Kopf asks again: the API server says 429 while it takes in a new CRD
            assert not [error for error in errors if "will retry" not in error]
            lease = api.get("leases", "drumline-operator", "drumline-system")
            epochs.append(lease["spec"]["leaseTransitions"])
    assert len(before[0]) == SINGLES + GANGS
    assert epochs == sorted(set(epochs))


def _start_all(site: Site, agents: ExitStack) -> None:
    gangs = [agents.enter_context(Trainers(site, f"gang-{number}")) for number in range(GANGS)]
    for gang in gangs:
        gang.submit(nodes=1)
    for gang in gangs:
        gang.attend("0-g1")
        gang.running(1)
    for number in range(SINGLES):
        site.submit(f"single-{number}", nodes=1, gpusPerNode=1)
    site.kube.wait_all("trainingjobs", site.namespace, _all_run)


def _all_run(jobs: list[Json]) -> bool:
    return len(jobs) == SINGLES + GANGS and all(map(phase_is("Running"), jobs))


def _do_a_days_work(site: Site, number: int) -> None:
    """This operator starts a job, sees it end, and has looked at every other by then."""
    name = f"guest-{number}"
    site.submit(name, nodes=1, gpusPerNode=1)
    site.wait(name, phase_is("Running"))
    site.end_pods(name)
    site.wait(name, phase_is("Succeeded"))
    site.kube.delete("trainingjobs", name, site.namespace)
    site.kube.wait_all(
        "pods",
        site.namespace,
        lambda pods: not pods,
        labels=f"drumline.dev/job={name}",
        seconds=60,
    )
