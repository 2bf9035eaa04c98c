"""What can befall a node, beside losing its power (`nodes.power_off`) or its cable
(`network.set_cable`): a zombie, whose kubelet and containerd stand still while its containers run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cluster.model import Cluster, ClusterError, NodeInfo
from tools.cluster.process import find

DAEMONS = ("kubelet", "containerd")


@contextmanager
def zombie(cluster: Cluster, node: NodeInfo) -> Iterator[None]:
    """Stop the node's kubelet and containerd meanwhile; what they started runs on."""
    _signal(cluster, node, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(cluster, node, signal.SIGCONT)


def _signal(cluster: Cluster, node: NodeInfo, number: signal.Signals) -> None:
    """To the daemons alone: containerd's shims carry its role too."""
    roles = {f"{node.name}/{daemon}": daemon for daemon in DAEMONS}
    pids = [
        each.pid
        for each in find(cluster.folder)
        if each.role in roles and _program(each.pid) == roles[each.role]
    ]
    if len(pids) != len(DAEMONS):
        raise ClusterError(f"{node.name} does not run {' and '.join(DAEMONS)}: found {pids}")
    for pid in pids:
        os.kill(pid, number)


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # gone meanwhile
        return ""
