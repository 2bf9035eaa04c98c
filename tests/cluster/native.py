"""The `native` provider: a real Kubernetes made of plain processes on this machine."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.binaries import CONTROL_PLANE, ensure_binaries
from tests.cluster.certificates import Authority, new_authority, write_kubeconfig
from tests.cluster.control_plane import (
    loopback,
    start_control_plane,
    wait_for_control_plane,
)
from tests.cluster.kwok import create_fake_nodes, ready_nodes, start_kwok
from tests.cluster.model import Cluster, ClusterSpec, Provider
from tests.cluster.process import Process, wait_until
from tests.cluster.progress import Progress


def start_native(spec: ClusterSpec, *, progress: Progress) -> Cluster:
    """Start the cluster; whatever happens on the way, `stop_native` removes it."""
    binaries = ensure_binaries(_needed_binaries(spec), say=progress.say)
    spec.folder.mkdir(parents=True)
    place = loopback()
    authority = new_authority()
    with progress.step("control plane"):
        processes = start_control_plane(
            spec.folder, place=place, authority=authority, binaries=binaries
        )
        kubeconfig = _admin(spec.folder, authority, server=place.server)
        wait_for_control_plane(spec.folder, kubeconfig=kubeconfig, needs=processes)
    if spec.kwok or spec.fake_nodes:
        _start_fake_nodes(spec, kubeconfig=kubeconfig, netns=place.netns, progress=progress)
    return Cluster(
        name=spec.name, provider=Provider.NATIVE, kubeconfig=kubeconfig, folder=spec.folder
    )


def _needed_binaries(spec: ClusterSpec) -> list[str]:
    wanted = [*CONTROL_PLANE]
    if spec.nodes:
        wanted.append("kubelet")
    if spec.kwok or spec.fake_nodes:
        wanted.append("kwok")
    return wanted


def _admin(folder: Path, authority: Authority, *, server: str) -> Path:
    pair = authority.issue(common_name="drumline-admin", organization="system:masters")
    return write_kubeconfig(folder / "kubeconfig", server=server, authority=authority, pair=pair)


def _start_fake_nodes(
    spec: ClusterSpec, *, kubeconfig: Path, netns: str | None, progress: Progress
) -> Process:
    with progress.step(f"KWOK and {spec.fake_nodes} fake nodes"):
        kwok = start_kwok(spec.folder, kubeconfig=kubeconfig, netns=netns)
        create_fake_nodes(kubeconfig, count=spec.fake_nodes)
        wait_until(
            lambda: ready_nodes(kubeconfig) >= spec.fake_nodes,
            what="fake nodes Ready",
            timeout_seconds=60 + spec.fake_nodes / 50,
            folder=spec.folder,
            needs=[kwok],
        )
    return kwok
