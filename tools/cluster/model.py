"""A throwaway cluster as data: what is asked for, and what runs.

A cluster is one folder under `<cache>/clusters/<name>`, a fixed place, so that any checkout can
find and stop it. Everything else that belongs to it carries that folder or its name: processes in
their environment (process.py), network namespaces and control groups in their names (network.py,
cgroups.py). Nothing has to be remembered for a clean stop, so `down` works from any moment of `up`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tools.cluster.cache import cache_dir


class ClusterError(RuntimeError):
    """The cluster cannot be what was asked for; the message says what is missing or broke."""


class Provider(StrEnum):
    """Where the cluster comes from."""

    NATIVE = "native"
    KIND = "kind"
    EXISTING = "existing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What is asked for. `nodes=0` is a control plane alone, on loopback, without root.

    Attributes:
        name: names the folder, the network namespaces and the control group.
        provider: None picks one and says why.
        nodes: real kubelets.
        gpus_per_node: devices the plugin of each real node offers.
        racks: the real nodes are spread over that many values of `drumline.dev/rack`.
        fake_nodes: KWOK nodes of 8 GPUs each, 10 a rack.
        kwok: run KWOK even without fake nodes (a bench makes them later).
        fake_pods: the addresses of their pods; agents of two clusters that listen there need two.
        completes_jobs: whether KWOK ends a running pod whose owner is of a kind `Job`, at once.
        api_server_flags: further flags of the API server, such as alpha APIs.
    """

    name: str = "drumline"
    provider: Provider | None = None
    nodes: int = 3
    gpus_per_node: int = 2
    racks: int = 2
    fake_nodes: int = 0
    kwok: bool = False
    fake_pods: str = "127.77.0.1/16"
    completes_jobs: bool = True
    api_server_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            raise ClusterError(
                f"cluster name {self.name!r}: at most 40 lowercase letters, digits and dashes"
            )
        if not 0 <= self.nodes <= 9:
            raise ClusterError(f"{self.nodes} real nodes: 0 to 9 fit on one machine")

    @property
    def folder(self) -> Path:
        return cluster_folder(self.name)

    @property
    def has_kwok(self) -> bool:
        return self.kwok or self.fake_nodes > 0

    def rack_of(self, index: int) -> str:
        """Racks are filled in order: 3 nodes on 2 racks are 0, 0, 1."""
        per_rack = -(-self.nodes // min(self.racks, self.nodes))
        return f"rack-{index // per_rack}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One real node.

    Attributes:
        netns: its network namespace; its uplink in the cluster's namespace is named like the node,
            so `ip link set NAME down` there cuts it off.
        folder: its /var/lib, /var/log and device list.
    """

    name: str
    address: str
    pod_cidr: str
    rack: str
    gpus: int
    netns: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that runs.

    Attributes:
        kubeconfig: administrator's access from this machine.
        netns: name of the namespace of control plane and switch (`ip netns exec`, or
            `nsenter --net=/run/netns/NAME`); None where the cluster is on loopback or not ours.
    """

    name: str
    provider: Provider
    kubeconfig: Path
    folder: Path
    nodes: tuple[NodeInfo, ...] = ()
    netns: str | None = None

    def save(self) -> None:
        """Write cluster.json; its presence says that `up` came to its end."""
        text = json.dumps(asdict(self), default=str, indent=2)
        staged = self.folder / "cluster.json.new"
        staged.write_text(text)
        staged.rename(self.folder / "cluster.json")


def clusters_folder() -> Path:
    """Where every cluster of this user lives."""
    return cache_dir() / "clusters"


def cluster_folder(name: str) -> Path:
    """The folder of the cluster `name`."""
    return clusters_folder() / name


def read_cluster(folder: Path) -> Cluster | None:
    """The cluster whose `up` ended in this folder, or None."""
    try:
        raw: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
    except FileNotFoundError:
        return None
    nodes = tuple(NodeInfo(**{**node, "folder": Path(node["folder"])}) for node in raw["nodes"])
    return Cluster(
        name=raw["name"],
        provider=Provider(raw["provider"]),
        kubeconfig=Path(raw["kubeconfig"]),
        folder=Path(raw["folder"]),
        nodes=nodes,
        netns=raw["netns"],
    )
