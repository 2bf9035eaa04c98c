"""What this machine offers a rank: its share of the processors, the interface of an address.

Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from ipaddress import ip_address
from pathlib import Path

_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""
_CGROUP = Path("/sys/fs/cgroup")


def threads_per_rank(local_world_size: int) -> int:
    """Compute threads of one rank, so that the pod's ranks together fill its processors once.

    Two busy ranks of two threads each on two cores spend most of their time waiting for each other.
    """
    return max(1, int(available_cpus() / local_world_size))


def available_cpus(cgroup: Path = _CGROUP) -> float:
    """Processors this process may use: its affinity, or its container's CPU limit if lower."""
    affinity = float(len(os.sched_getaffinity(0)))
    quota = _cgroup_cpus(cgroup)
    return affinity if quota is None else min(affinity, quota)


def interface_of(address: str) -> str:
    """Name of the network interface that carries this IP address.

    Raises:
        OSError: no interface of this machine does.
    """
    wanted = ip_address(address)
    if wanted.is_loopback:
        return "lo"
    found = _ipv6_interfaces() if wanted.version == 6 else _ipv4_interfaces()
    if str(wanted) not in found:
        raise OSError(f"no network interface of this machine has the address {address}")
    return found[str(wanted)]


def _cgroup_cpus(cgroup: Path) -> float | None:
    """The limit of version 2 (`cpu.max`) or 1 (`cpu/cpu.cfs_*`); None for no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _ipv4_interfaces() -> dict[str, str]:
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            found[socket.inet_ntoa(answer[20:24])] = name
    return found


def _ipv6_interfaces() -> dict[str, str]:
    """From `/proc/net/if_inet6`: 32 hex digits, four numbers we skip, the name."""
    rows = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
    return {str(ip_address(int(row[0], 16).to_bytes(16, "big"))): row[5] for row in rows}
