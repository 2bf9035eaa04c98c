"""Network interfaces of this machine. Standard library only; Linux."""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import ip_address
from pathlib import Path

_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""


def interface_of(address: str) -> str:
    """Return the name of the network interface that carries this IP address.

    Raises:
        OSError: no interface of this machine has it.
    """
    wanted = ip_address(address)
    if wanted.is_loopback:
        return "lo"
    interfaces = _ipv6_interfaces() if wanted.version == 6 else _ipv4_interfaces()
    if str(wanted) not in interfaces:
        raise OSError(f"no network interface of this machine has the address {address}")
    return interfaces[str(wanted)]


def _ipv4_interfaces() -> dict[str, str]:
    interfaces: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # IFNAMSIZ is 16 with the final zero byte.
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            # Bytes 20 to 24 of ifreq are sin_addr, after the name and sin_family and sin_port.
            interfaces[socket.inet_ntoa(answer[20:24])] = name
    return interfaces


def _ipv6_interfaces() -> dict[str, str]:
    """Read `/proc/net/if_inet6`: 32 hex digits, four numbers that are skipped, the name."""
    rows = (line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines())
    return {str(ip_address(int(row[0], 16).to_bytes(16, "big"))): row[5] for row in rows}
