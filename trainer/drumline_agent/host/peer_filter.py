"""A listening socket that hears its peers alone: others' packets are dropped in the kernel.

torch's TCPStore has no authentication: who can connect reads, lists and sets every key. It serves
on a socket that we hand to it, so the socket carries a classic BPF filter (SO_ATTACH_FILTER, see
socket(7); it takes no privilege) which passes TCP segments of the gang's own addresses, as the
signed generation record names them, and of loopback. The connections that are accepted inherit it.
Standard library only; Linux.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

MAX_NETWORKS: Final = {4: 2000, 6: 440}
"""Number of networks above which addresses are merged. A filter has at most 4,096 instructions."""
_SMALLER: Final = (400, 60)
"""Tried where the kernel has less room for filters: net.core.optmem_max, 20 KiB before 6.9."""
_SO_ATTACH_FILTER: Final = 26

_LOAD_WORD, _AND, _JUMP_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NETWORK_HEADER: Final = 0x100000000 - 0x100000
"""SKF_NET_OFF: offsets from here count from the beginning of the IP header."""
_SOURCE_OFFSET: Final = {4: 12, 6: 8}
_PASS, _DROP = 0xFFFFFFFF, 0

Network = IPv4Network | IPv6Network
Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip where a jump's condition holds and where not, operand."""


def networks_of(addresses: Iterable[str]) -> list[Network]:
    """Return networks of one length that contain these addresses of one family, sorted.

    They are single addresses unless there are more than `MAX_NETWORKS`.

    Raises:
        ValueError: not an address, addresses of two families, or none.
    """
    numbers = {ip_address(address) for address in addresses}
    if len({number.version for number in numbers}) != 1:
        raise ValueError("the addresses must be of one family")
    hosts = [ip_network(number) for number in numbers]
    return merged(hosts, limit=MAX_NETWORKS[hosts[0].version])


def merged(networks: Iterable[Network], *, limit: int) -> list[Network]:
    """Widen networks of one length until at most `limit` of them are left; they come back sorted.

    Neighbours of the peers may pass then too.
    """
    wider = set(networks)
    while len(wider) > limit:
        wider = {network.supernet() for network in wider}
    return sorted(wider, key=lambda network: int(network.network_address))


def program(networks: Sequence[Network]) -> list[Instruction]:
    """Build a filter that passes segments from one of the networks and drops all others.

    Example, 10.0.0.7/32 and 10.0.0.9/32:

        ld [ip + 12]; jeq 10.0.0.7, 0, 1; ret pass; jeq 10.0.0.9, 0, 1; ret pass; ret drop
    """
    instructions: list[Instruction] = []
    loaded: tuple[int, int] | None = None
    for network in networks:
        offset = _NETWORK_HEADER + _SOURCE_OFFSET[network.version]
        words = list(_words(network))
        for index, (value, mask) in enumerate(words):
            if loaded != (index, mask):
                instructions.append((_LOAD_WORD, 0, 0, offset + 4 * index))
                if mask != 0xFFFFFFFF:
                    instructions.append((_AND, 0, 0, mask))
                loaded = (index, mask)
            instructions.append((_JUMP_EQUAL, 0, _left(words, index), value))
        instructions.append((_RETURN, 0, 0, _PASS))
        if len(words) > 1:
            loaded = None
    return [*instructions, (_RETURN, 0, 0, _DROP)]


def attach(listener: socket.socket, networks: Sequence[Network]) -> int:
    """Make a listening socket accept connections only from these networks and loopback.

    Returns:
        The number of networks in the filter. It is lower than `networks` if networks were merged
        because of the kernel's memory limit for filters.

    Raises:
        OSError: the kernel, or a sandbox that replaces it, rejects the filter.
    """
    loopback = ip_network("127.0.0.0/8" if listener.family == socket.AF_INET else "::1/128")
    for limit in (len(networks), *_SMALLER):
        peers = merged(networks, limit=limit)
        try:
            attach_program(listener, program([loopback, *peers]))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
        else:
            return len(peers)
    raise OSError(errno.ENOMEM, "no room for a socket filter")


def _left(words: Sequence[tuple[int, int]], index: int) -> int:
    """Return how many instructions lie between a comparison of this word and the next network."""
    following = sum(2 if mask == 0xFFFFFFFF else 3 for _, mask in words[index + 1 :])
    return following + 1


def _words(network: Network) -> Iterable[tuple[int, int]]:
    """Yield each 32-bit word of the address that the prefix reaches into, with its mask."""
    bits = network.max_prefixlen
    address, mask = int(network.network_address), int(network.netmask)
    for index in range(max(1, -(-network.prefixlen // 32))):
        shift = bits - 32 * (index + 1)
        yield (address >> shift) & 0xFFFFFFFF, (mask >> shift) & 0xFFFFFFFF


def attach_program(listener: socket.socket, instructions: Sequence[Instruction]) -> None:
    """Put a filter on a socket. Raises OSError."""
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
