"""Drumline from the files of a release alone, on real kubelets that reach no registry.

`make test-all WHAT=release`. It takes build/release if that is of the commit checked out, and makes
it otherwise. The images are in the node's containerd under a private registry's name, by digest, as
a mirror would have them; what the pods run is what the release has and nothing of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kube import Kube, phase_is
from tools import install
from tools.cluster import Cluster, ClusterSpec, kubectl, start, stop
from tools.cluster.binaries import ensure_binaries
from tools.cluster.nodes import import_images
from tools.release import verify, vex
from tools.release.__main__ import (
    CHART_LAYOUT,
    FOLDER,
    KEY,
    PUBLIC_KEY,
    USUAL,
    Wanted,
    make,
)
from tools.release.oci import INDEX_FILE, read_archived
from tools.release.registry import serving
from tools.release.signing import opened
from tools.release.source import read_source

Json = dict[str, Any]

MIRROR = "registry.example.com/drumline"
IMAGES = {"operator": "image", "trainer": "trainerImage"}
"""Image -> its key in the chart's values."""
FIRST_JOB = """\
apiVersion: drumline.dev/v1alpha1
kind: TrainingJob
metadata: {name: first-job}
spec: {queue: first, nodes: 1, gpusPerNode: 1, trainer: {steps: 100}}
"""
"""Of NOTES.txt."""


@pytest.fixture(scope="session")
def release() -> Path:
    """The release of the commit that is checked out."""
    if not _is_of(FOLDER, read_source().commit):
        make(FOLDER, wanted=Wanted(architectures=USUAL, key=KEY), source=read_source())
    return FOLDER


def _is_of(folder: Path, commit: str) -> bool:
    provenance = folder / verify.PROVENANCE
    if not provenance.exists():
        return False
    statement = opened(
        json.loads(provenance.read_text()), public_pem=(folder / PUBLIC_KEY).read_bytes()
    )
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    return {"name": "source", "digest": {"gitCommit": commit}} in dependencies


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One node with one GPU."""
    spec = ClusterSpec(name=f"drumline-release-{os.getpid()}", nodes=1, gpus_per_node=1, racks=1)
    try:
        yield start(spec, say=print)
    finally:
        stop(spec.name, say=print)


def test_every_signature_and_sum_holds(release: Path) -> None:
    print(*verify.check(release, public_pem=(release / PUBLIC_KEY).read_bytes()), sep="\n")
    command = ["sha256sum", "--check", "--strict", "--quiet", verify.SUMS]
    assert subprocess.run(command, cwd=release, check=False).returncode == 0


def test_the_code_that_the_vex_says_is_absent_is(release: Path) -> None:
    with tarfile.open(next(release.glob("operator-*.tar"))) as archive:
        libraries = dict(_files_of_base(archive, containing="/libz.so.1."))
    assert libraries
    for library in libraries.values():
        assert b"inflateInit" in library
        assert not any(statement.absent in library for statement in vex.STATEMENTS)


def _files_of_base(archive: tarfile.TarFile, *, containing: str) -> Iterator[tuple[str, bytes]]:
    """Regular files of the first layer of each architecture."""
    (listed,) = json.loads(read_archived(archive, INDEX_FILE))["manifests"]
    for variant in json.loads(_blob(archive, listed))["manifests"]:
        base = json.loads(_blob(archive, variant))["layers"][0]
        file = archive.extractfile(_blob_name(base))
        assert file is not None
        with tarfile.open(fileobj=file, mode="r|gz") as layer:
            for entry in layer:
                content = layer.extractfile(entry) if entry.isfile() else None
                if content is not None and containing in entry.name:
                    yield f"{variant['platform']['architecture']}/{entry.name}", content.read()


def _blob(archive: tarfile.TarFile, descriptor: Json) -> bytes:
    return read_archived(archive, _blob_name(descriptor))


def _blob_name(descriptor: Json) -> str:
    return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"


def test_the_wheels_bring_the_command_line_and_the_client(release: Path, tmp_path: Path) -> None:
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    wheels = sorted(release.glob("*.whl"))
    assert run(["uv", "venv", "--python", sys.executable, "environment"]).returncode == 0
    python = "environment/bin/python"
    install_them = ["uv", "pip", "install", "--no-index", "--no-deps", "--python", python, *wheels]
    assert run(install_them).returncode == 0
    # what they need comes from here; drumline itself may not
    dependencies = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    said = run(["environment/bin/drumline", "--help"], env=dependencies)
    assert "Drumline: training jobs on Kubernetes" in said.stdout, said.stderr
    script = "import drumline, drumline_client as client; print(drumline.__file__, client.__file__)"
    places = run([python, "-c", script], env=dependencies).stdout.split()
    assert [Path(place).is_relative_to(tmp_path) for place in places] == [True, True]


def test_it_is_installed_and_a_first_job_trains(
    release: Path, cluster: Cluster, tmp_path: Path
) -> None:
    for name in IMAGES:
        (archive,) = release.glob(f"{name}-*.tar")
        for node in cluster.nodes:
            import_images(node, archive, folder=cluster.folder, mirror=f"{MIRROR}/{name}")
    install.namespace(cluster, install.SYSTEM_NAMESPACE)
    install.namespace(cluster, "team")

    started = time.monotonic()
    _install(release, cluster, tmp_path)
    installed = time.monotonic() - started
    kubectl(cluster, "apply", "--namespace=team", f"--filename={_written(tmp_path, FIRST_JOB)}")
    kube = Kube(cluster.kubeconfig)
    kube.wait("trainingjobs", "first-job", "team", phase_is("Running"), seconds=600)
    line = _first_loss(cluster)
    print(
        f"helm install: {installed:.0f} s; its first loss {time.monotonic() - started:.0f} s after "
        f"the beginning, from {len(FIRST_JOB.splitlines())} lines of YAML: {line.strip()}"
    )
    job = kube.wait("trainingjobs", "first-job", "team", phase_is("Succeeded"), seconds=600)
    assert job is not None
    assert job["status"]["step"] == 100
    assert job["status"]["image"].startswith(f"{MIRROR}/trainer@sha256:")
    images = {
        container["image"]
        for namespace in ("team", install.SYSTEM_NAMESPACE)
        for pod in kube.list("pods", namespace)
        for container in pod["spec"]["containers"]
    }
    assert {image.partition("@")[0] for image in images} == {f"{MIRROR}/{name}" for name in IMAGES}
    kube.close()


def test_a_script_of_ones_own_runs_under_the_agent_of_the_release(cluster: Cluster) -> None:
    """The agent's own Python, which comes out of the operator's image, runs it."""
    template = {
        "image": f"{MIRROR}/trainer:{read_source().version}",
        "launch": "PerGpu",
        "command": ["python3", "-c", "import torch, os; print('rank', os.environ['RANK'])"],
    }
    spec = {"queue": "first", "nodes": 1, "gpusPerNode": 1, "template": template}
    kube = Kube(cluster.kubeconfig)
    kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "own", "namespace": "team"},
            "spec": spec,
        }
    )
    kube.wait("trainingjobs", "own", "team", phase_is("Succeeded"), seconds=600)
    kube.close()
    logs = kubectl(cluster, "logs", "--namespace=team", "own-0-g1")
    assert any(line.endswith("rank 0") for line in logs.splitlines()), logs


def _install(release: Path, cluster: Cluster, folder: Path) -> None:
    """`helm install` of the chart that Helm pulls from the layout, nodes without GPUs aside."""
    helm = ensure_binaries(["helm"], say=print)["helm"]
    values: Json = {
        **{key: {"repository": f"{MIRROR}/{name}"} for name, key in IMAGES.items()},
        "firstQueue": {"gpus": 1},
        "trainerPod": {"env": [{"name": "DRUMLINE_DEVICE", "value": "cpu"}]},
    }
    with serving({"charts/drumline": release / CHART_LAYOUT}) as host:
        command = [helm, f"--kubeconfig={cluster.kubeconfig}", "install", "drumline"]
        command += [f"oci://{host}/charts/drumline", "--plain-http", "--wait", "--timeout=10m"]
        command += [f"--namespace={install.SYSTEM_NAMESPACE}"]
        command += ["--values", _written(folder, json.dumps(values))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert FIRST_JOB in done.stdout


def _written(folder: Path, text: str) -> Path:
    file = folder / f"file-{len(list(folder.iterdir()))}.yaml"
    file.write_text(text)
    return file


def _first_loss(cluster: Cluster) -> str:
    """The first line with a loss that the job's pod logs, as soon as it does."""
    binary = ensure_binaries(["kubectl"], say=print)["kubectl"]
    command = [binary, f"--kubeconfig={cluster.kubeconfig}", "logs", "--follow", "--namespace=team"]
    with subprocess.Popen(
        [*command, "first-job-0-g1"], stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        for line in following.stdout:
            if "loss" in line:
                following.terminate()
                return line
    raise AssertionError("the job's pod logged no loss")


def test_made_again_from_nothing_it_is_the_same(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the trainer's image with its gigabytes, which is made in the same way."""
    monkeypatch.setenv("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    again, wanted = tmp_path / "again", Wanted(architectures={"operator": ["amd64"]}, key=KEY)
    make(again, wanted=wanted, source=read_source())
    assert _variants(again)["amd64"] == _variants(release)["amd64"]
    before, after = verify.sums(release), verify.sums(again)
    # of the others each depends on which images there are
    compared = {name for name in after if name.startswith(("chart/", "drumline")) or "spdx" in name}
    compared -= {"drumline.openvex.json"}
    assert len(compared) >= 10
    assert {name: after[name] for name in compared} == {name: before[name] for name in compared}


def _variants(release: Path) -> dict[str, str]:
    """The digest of the operator's image by architecture."""
    with tarfile.open(next(release.glob("operator-*.tar"))) as archive:
        (listed,) = json.loads(read_archived(archive, INDEX_FILE))["manifests"]
        manifests = json.loads(_blob(archive, listed))["manifests"]
    return {each["platform"]["architecture"]: each["digest"] for each in manifests}
