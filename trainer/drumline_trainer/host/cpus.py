"""Processors of this machine, and the share of a rank. Standard library only; Linux."""

from __future__ import annotations

import os
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
