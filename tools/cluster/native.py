"""The `native` provider: a real Kubernetes made of plain processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cluster import cgroups
from tools.cluster.binaries import CONTROL_PLANE, ensure_binaries
from tools.cluster.certificates import Authority, new_authority, write_kubeconfig
from tools.cluster.control_plane import (
    Place,
    loopback,
    namespace,
    start_api_server,
    start_controllers,
    wait_for_api_server,
    wait_for_controllers,
)
from tools.cluster.device_plugin import RESOURCE
from tools.cluster.images import ensure_images, load_images
from tools.cluster.kwok import create_fake_nodes, is_ready, ready_nodes, start_kwok
from tools.cluster.model import Cluster, ClusterSpec, NodeInfo, Provider, cluster_folder
from tools.cluster.network import (
    connect_node,
    create_fabric,
    delete_namespaces,
    fabric_netns,
    plan_node,
)
from tools.cluster.nodes import note_images, start_node
from tools.cluster.packages import ensure_packages, missing_packages
from tools.cluster.ports import ReservedPorts
from tools.cluster.process import Process, find, kill, spawn, wait_until
from tools.cluster.progress import Progress
from tools.cluster.rest import Api
from tools.cluster.seed import ensure_seed, plant


class Native:
    """Control plane on loopback, or with real nodes in a network of its own (root)."""

    def missing(self, spec: ClusterSpec) -> str | None:
        """Real nodes take namespaces and mounts, which take root on Linux."""
        if spec.nodes == 0:
            return None
        if sys.platform != "linux":
            return f"real nodes without Docker run on Linux only, this is {sys.platform}"
        if os.geteuid() != 0:
            return "real nodes without Docker take root"
        if subprocess.run(["unshare", "--mount", "--net", "true"], check=False).returncode != 0:
            return "this root may not make namespaces (CAP_SYS_ADMIN is missing)"
        return missing_packages()

    def start(self, spec: ClusterSpec, *, progress: Progress) -> Cluster:
        """Start the cluster; whatever happens on the way, `remove` removes it."""
        # compilers use the processors; packages and images mostly wait for downloads and disks
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(ensure_binaries, _needed_binaries(spec), say=progress.say)
            seed = _node_images(progress) if spec.nodes else None
            binaries = made.result()
        authority = new_authority()
        with progress.step("control plane"), ReservedPorts() as ports:
            place = _place(spec, ports)
            kubeconfig = _start_control_plane(spec, place, authority, binaries, ports)
        nodes = tuple(plan_node(spec, index) for index in range(spec.nodes))
        if seed is not None:
            with progress.step(f"{spec.nodes} nodes with {spec.gpus_per_node} GPUs each"):
                _start_nodes(spec, nodes, place=place, authority=authority, seed=seed)
                _wait_for_nodes(spec.folder, kubeconfig, nodes)
        if spec.has_kwok:
            with progress.step(f"KWOK and {spec.fake_nodes} fake nodes"):
                _start_fake_nodes(spec, place=place, authority=authority, kubeconfig=kubeconfig)
        return Cluster(
            name=spec.name,
            provider=Provider.NATIVE,
            kubeconfig=kubeconfig,
            folder=spec.folder,
            nodes=nodes,
            netns=place.netns,
        )

    def runs(self, cluster: Cluster) -> bool:
        """Its API server is a process of ours."""
        return any(process.role == "kube-apiserver" for process in find(cluster.folder))

    def load_images(self, cluster: Cluster, *, progress: Progress) -> None:
        """Into every node's containerd."""
        archive = ensure_images(progress=progress)
        load_images(archive, cluster.nodes, folder=cluster.folder, progress=progress)

    def remove(self, name: str) -> None:
        """Remove every trace, from whatever moment of a start; needs nothing but the name."""
        kill(cluster_folder(name))
        cgroups.delete(name)
        delete_namespaces(name)


def _node_images(progress: Progress) -> Path:
    """Install the packages of nodes, build the images, and return the seed of their stores."""
    ensure_packages(progress=progress)
    return ensure_seed(ensure_images(progress=progress), progress=progress)


def _needed_binaries(spec: ClusterSpec) -> list[str]:
    wanted = [*CONTROL_PLANE]
    if spec.nodes:
        wanted += ["kubelet", "helm"]  # helm shares packages: built alone it costs two minutes
    if spec.has_kwok:
        wanted.append("kwok")
    return wanted


def _place(spec: ClusterSpec, ports: ReservedPorts) -> Place:
    """Real nodes need a network of their own; without them loopback is enough."""
    if spec.nodes == 0:
        return loopback(ports)
    netns = fabric_netns(spec.name)
    create_fabric(netns)
    return namespace(netns)


def _way_in(folder: Path, place: Place, ports: ReservedPorts) -> tuple[str, list[Process]]:
    """The API server's URL from this machine, with the relay that makes it so, if needed."""
    if place.netns is None:
        return place.server, []
    port = ports.take()
    target = f"{place.address}:{place.api_port}"
    command = [sys.executable, "-I", Path(__file__).with_name("relay.py"), str(port), place.netns]
    return f"https://127.0.0.1:{port}", [spawn([*command, target], folder=folder, role="relay")]


def _start_control_plane(
    spec: ClusterSpec,
    place: Place,
    authority: Authority,
    binaries: dict[str, Path],
    ports: ReservedPorts,
) -> Path:
    folder = spec.folder
    started = start_api_server(
        folder,
        place=place,
        authority=authority,
        binaries=binaries,
        fake_nodes=spec.has_kwok,
        flags=spec.api_server_flags,
    )
    server, relay = _way_in(folder, place, ports)
    started += relay
    kubeconfig = _admin(folder, authority, server=server)
    wait_for_api_server(folder, kubeconfig=kubeconfig, needs=started)
    started += start_controllers(
        folder, place=place, authority=authority, binaries=binaries, fake_nodes=spec.has_kwok
    )
    wait_for_controllers(folder, kubeconfig=kubeconfig, needs=started)
    return kubeconfig


def _admin(folder: Path, authority: Authority, *, server: str, name: str = "kubeconfig") -> Path:
    pair = authority.issue(common_name="drumline-admin", organization="system:masters")
    return write_kubeconfig(folder / name, server=server, authority=authority, pair=pair)


def _start_nodes(
    spec: ClusterSpec,
    nodes: tuple[NodeInfo, ...],
    *,
    place: Place,
    authority: Authority,
    seed: Path,
) -> None:
    for node in nodes:
        plant(seed, node.folder / "var-lib" / "containerd")
        note_images(node, seed)
        connect_node(node, fabric=fabric_netns(spec.name))
        start_node(
            node,
            cluster_name=spec.name,
            folder=spec.folder,
            server=place.server,
            authority=authority,
        )


def _wait_for_nodes(folder: Path, kubeconfig: Path, nodes: tuple[NodeInfo, ...]) -> None:
    wait_until(
        lambda: _all_offer_gpus(kubeconfig, nodes),
        what=f"{len(nodes)} nodes Ready (logs of kubelet and containerd in {folder / 'logs'})",
        timeout_seconds=90,
        folder=folder,
    )


def _all_offer_gpus(kubeconfig: Path, nodes: tuple[NodeInfo, ...]) -> bool:
    with Api(kubeconfig) as api:
        results = {
            each["metadata"]["name"]: each for each in api.request("GET", "/api/v1/nodes")["items"]
        }
    return all(
        node.name in results
        and is_ready(results[node.name])
        and results[node.name]["status"]["allocatable"].get(RESOURCE) == str(node.gpus)
        for node in nodes
    )


def _start_fake_nodes(
    spec: ClusterSpec, *, place: Place, authority: Authority, kubeconfig: Path
) -> None:
    inside = _admin(spec.folder, authority, server=place.server, name="kwok.kubeconfig")
    kwok = start_kwok(
        spec.folder,
        kubeconfig=inside,
        netns=place.netns,
        pods=spec.fake_pods,
        completes_jobs=spec.completes_jobs,
    )
    create_fake_nodes(kubeconfig, count=spec.fake_nodes)
    wait_until(
        lambda: ready_nodes(kubeconfig) >= spec.fake_nodes + spec.nodes,
        what="fake nodes Ready",
        every_seconds=0.5,  # each look lists all nodes
        timeout_seconds=60 + spec.fake_nodes / 50,
        folder=spec.folder,
        needs=[kwok],
    )
