"""The processes inside a pod, seen and hit from the machine: no kubelet or containerd is asked.

A process is known by the control group of its pod, and by its start time, so that one whose number
was given away again is another process. Inside its container it has a number of its own, which is
what the pod's log speaks of.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import cgroups
from tools.cluster.model import Cluster, ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inhabitant:
    """One process of a pod.

    Attributes:
        pid: its number on this machine.
        inner_pid: its number inside the container; the agent of a trainer pod is 1.
        started: the kernel's clock ticks from boot to its start.
    """

    pid: int
    inner_pid: int
    started: int


def inhabitants(cluster: Cluster, pod_uid: str) -> dict[int, Inhabitant]:
    """The living processes of a pod by their number inside the container.

    The sandbox container has a process 1 of its own and is left out.
    """
    results = [_look(pid) for pid in cgroups.pids_of_pod(cluster.name, pod_uid)]
    sandbox = _sandbox([each for each in results if each is not None])
    return {
        each.inner_pid: each for each in results if each is not None and each.pid not in sandbox
    }


def strike(cluster: Cluster, pod_uid: str, inner_pid: int, number: signal.Signals) -> Inhabitant:
    """Send a signal to exactly that process of the pod.

    Raises:
        ClusterError: there is no such process.
    """
    process = inhabitants(cluster, pod_uid).get(inner_pid)
    if process is None:
        raise ClusterError(f"pod {pod_uid} has no process {inner_pid}")
    handle = os.pidfd_open(process.pid)
    try:
        if _look(process.pid) != process:
            raise ClusterError(f"process {inner_pid} of pod {pod_uid} ended meanwhile")
        signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
    return process


@contextmanager
def frozen(cluster: Cluster, pod_uids: Collection[str]) -> Iterator[None]:
    """All processes of these pods stand still meanwhile, as on a machine that is paused."""
    pids = [pid for uid in pod_uids for pid in cgroups.pids_of_pod(cluster.name, uid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        left = {pid for uid in pod_uids for pid in cgroups.pids_of_pod(cluster.name, uid)}
        for pid in left.intersection(pids):
            os.kill(pid, signal.SIGCONT)


def _sandbox(living: list[Inhabitant]) -> set[int]:
    """Of several processes 1 the oldest is the sandbox's."""
    firsts = sorted((each for each in living if each.inner_pid == 1), key=lambda each: each.started)
    return {each.pid for each in firsts[:-1]}


def _look(pid: int) -> Inhabitant | None:
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text()
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # gone meanwhile
        return None
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    if fields[0] == "Z":
        return None
    return Inhabitant(pid=pid, inner_pid=int(numbers[-1]), started=int(fields[19]))
