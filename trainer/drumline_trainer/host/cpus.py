"""Processors of this machine, the share of a rank, and those beside its GPU.

A rank's memory on the host lies on the NUMA node that the rank runs on. Pinned buffers of another
node cross the link between the processors, which all GPUs of a node share. The driver states the
PCI address of a GPU, and the kernel its NUMA node. Standard library only; Linux.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def threads_per_rank(local_world_size: int) -> int:
    """Compute threads of one rank, so that the pod's ranks together fill its processors once.

    Two busy ranks of two threads each on two cores spend most of their time waiting for each other.
    """
    return max(1, int(available_cpus() / local_world_size))


def available_cpus(cgroup: Path = _CGROUP) -> float:
    """Return how many processors this process may use: its affinity, or a lower CPU limit."""
    affinity = float(len(os.sched_getaffinity(0)))
    quota = _cgroup_cpus(cgroup)
    return affinity if quota is None else min(affinity, quota)


def _cgroup_cpus(cgroup: Path) -> float | None:
    """Return the limit of version 2 (`cpu.max`) or 1 (`cpu/cpu.cfs_*`). None: no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


_GPUS = "proc/driver/nvidia/gpus"
_DEVICES = "sys/bus/pci/devices"
_NODES = "sys/devices/system/node"


def bind_near_gpu(identity: str, *, root: Path = Path("/")) -> None:
    """Bind this thread, and the threads that it starts, to the allowed processors near the GPU.

    Do nothing if the location of the GPU is unknown, or if no allowed processor is near it.

    Args:
        identity: `GPU-` and its UUID. The bus does not list parts of a GPU (MIG).
        root: root of the file system.
    """
    allowed = os.sched_getaffinity(0)
    near = allowed & processors_near_gpu(identity, root=root)
    # An empty set would fail, and an equal one changes nothing.
    if near and near != allowed:
        os.sched_setaffinity(0, near)


def processors_near_gpu(identity: str, *, root: Path = Path("/")) -> set[int]:
    """Return the processors of the GPU's NUMA node. Empty: unknown."""
    for description in (root / _GPUS).glob("*/information"):
        # Drivers without these files, and node -1 on machines with one node, end in "unknown".
        with suppress(OSError, ValueError):
            if identity and identity in description.read_text().split():
                # sysfs writes addresses in lower case.
                address = description.parent.name.lower()
                node = int((root / _DEVICES / address / "numa_node").read_text())
                return _numbers((root / _NODES / f"node{node}" / "cpulist").read_text())
    return set()


def _numbers(text: str) -> set[int]:
    """Read a list such as `0-3,8`, as the kernel writes them.

    Raises:
        ValueError: it is not such a list.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
