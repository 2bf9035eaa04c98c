"""The network of a cluster: namespaces, one switch, one cable a node.

The namespace NAME.fabric holds the control plane and a bridge; each node has a namespace
NAME.node-i with a cable (veth) to that bridge, and its pods live behind a bridge of its own with a
/24 of their own. The fabric routes between them. Nothing of this is connected to the machine's
network: the API server's relay (relay.py) is the only way in, and there is no way out.

    NAME.fabric   10.96.0.1 (API server)   fabric 10.90.0.254
                      |-- node-0 ~~~ eth0 10.90.0.1 (NAME.node-0), pods 10.244.0.0/24
                      |-- node-1 ~~~ eth0 10.90.0.2 (NAME.node-1), pods 10.244.1.0/24
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tools.cluster.control_plane import SERVICE_ADDRESS
from tools.cluster.model import ClusterError, ClusterSpec, NodeInfo

_NAMESPACES = Path("/run/netns")
GATEWAY = "10.90.0.254"


def fabric_netns(name: str) -> str:
    """The namespace of the control plane and the switch."""
    return f"{name}.fabric"


def plan_node(spec: ClusterSpec, index: int) -> NodeInfo:
    """Name, addresses and place of the node with that index."""
    return NodeInfo(
        name=f"node-{index}",
        address=f"10.90.0.{index + 1}",
        pod_cidr=f"10.244.{index}.0/24",
        rack=spec.rack_of(index),
        gpus=spec.gpus_per_node,
        netns=f"{spec.name}.node-{index}",
        folder=spec.folder / f"node-{index}",
    )


def create_fabric(netns: str) -> None:
    """The namespace with the service address and the switch."""
    _run("ip", "netns", "add", netns)
    _ip(
        netns,
        "link set lo up",
        f"addr add {SERVICE_ADDRESS}/32 dev lo",
        "link add fabric type bridge",
        f"addr add {GATEWAY}/24 dev fabric",
        "link set fabric up",
    )
    _forward(netns)


def connect_node(node: NodeInfo, *, fabric: str) -> None:
    """The node's namespace, its cable to the switch, and the routes to its pods and back."""
    _run("ip", "netns", "add", node.netns)
    _ip(
        fabric,
        f"link add {node.name} type veth peer name eth0 netns {node.netns}",
        f"link set {node.name} master fabric up",
        f"route add {node.pod_cidr} via {node.address}",
    )
    _ip(
        node.netns,
        "link set lo up",
        f"addr add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {GATEWAY}",
    )
    _forward(node.netns)


def set_cable(node: NodeInfo, *, fabric: str, plugged: bool) -> None:
    """Cut a node and its pods off from all others, or connect it again."""
    _ip(fabric, f"link set {node.name} {'up' if plugged else 'down'}")


def namespaces_of(name: str) -> list[str]:
    """The namespaces that belong to the cluster of that name, whatever made them."""
    if not _NAMESPACES.exists():
        return []
    ours = re.compile(rf"{re.escape(name)}\.(fabric|node-\d+)")
    return sorted(each.name for each in _NAMESPACES.iterdir() if ours.fullmatch(each.name))


def delete_namespaces(name: str) -> None:
    """Delete every namespace of the cluster; cables, bridges and routes go with them."""
    for netns in namespaces_of(name):
        _run("ip", "netns", "delete", netns)


def _forward(netns: str) -> None:
    switch = "/proc/sys/net/ipv4/ip_forward"  # is the reader's own namespace's
    _run("nsenter", f"--net={_NAMESPACES / netns}", "sh", "-c", f"echo 1 > {switch}")


def _ip(netns: str, *commands: str) -> None:
    _run("ip", "-n", netns, "-batch", "-", text="\n".join(commands))


def _run(*command: str, text: str = "") -> None:
    if shutil.which(command[0]) is None:
        raise ClusterError(f"the command `{command[0]}` is missing: install iproute2, util-linux")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} {text!r}: {done.stderr.strip()}")
