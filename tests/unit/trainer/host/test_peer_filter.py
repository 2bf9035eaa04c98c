"""A listener that hears its peers alone, on loopback addresses of a real kernel."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_agent.host import peer_filter
from drumline_agent.host.peer_filter import (
    Instruction,
    Network,
    attach,
    attach_program,
    merged,
    networks_of,
    program,
)


def passes(instructions: Sequence[Instruction], source: str) -> bool:
    """What the kernel's machine makes of a segment from `source`."""
    number = ip_address(source)
    first = 0x100000000 - 0x100000 + (12 if number.version == 4 else 8)
    at, accumulator = 0, 0
    while True:
        operation, yes, no, operand = instructions[at]
        at += 1
        if operation == 0x20:
            shift = number.max_prefixlen - 8 * (operand - first) - 32
            accumulator = (int(number) >> shift) & 0xFFFFFFFF
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x15:
            at += yes if accumulator == operand else no
        else:
            assert operation == 0x06
            return operand != 0


def connects(listener: socket.socket, *, source: str) -> bool:
    """Whether a connection from this address is made.

    A segment that is dropped leaves no trace, so a connection of loopback's own that is made later
    says when the first one would have been accepted.
    """
    with socket.socket(listener.family) as guest:
        guest.bind((source, 0))
        guest.setblocking(False)
        guest.connect_ex(listener.getsockname())
        with socket.create_connection(listener.getsockname()[:2], timeout=10):
            accepted, peer = listener.accept()
            accepted.close()
            if peer[0] != source:
                return False
            listener.accept()[0].close()
            return True


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_peers_connect_and_others_do_not(listener: socket.socket) -> None:
    peers = [ip_network("127.0.0.1/32"), *networks_of(["127.0.0.5", "127.0.0.9"])]
    attach_program(listener, program(peers))
    with listener:
        heard = {n: connects(listener, source=f"127.0.0.{n}") for n in (4, 5, 8, 9, 10)}
    assert heard == {4: False, 5: True, 8: False, 9: True, 10: False}


def test_without_a_filter_everybody_connects(listener: socket.socket) -> None:
    with listener:
        assert connects(listener, source="127.0.0.4")


def test_loopback_is_always_heard(listener: socket.socket) -> None:
    with listener:
        assert attach(listener, networks_of(["10.0.0.1"])) == 1
        assert connects(listener, source="127.0.0.4")


def test_where_the_kernel_has_little_room_networks_are_merged(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def attach_small(_: socket.socket, instructions: Sequence[Instruction]) -> None:
        if len(instructions) > 500:
            raise OSError(errno.ENOMEM, "no room")
        taken.append(len(instructions))

    monkeypatch.setattr(peer_filter, "attach_program", attach_small)
    addresses = [f"10.{block}.{pod}.7" for block in range(4) for pod in range(150)]
    with listener:
        assert 16 <= attach(listener, networks_of(addresses)) <= 60
    assert len(taken) == 1


ADDRESSES = st.one_of(
    st.sets(st.ip_addresses(v=4).map(str), min_size=1, max_size=40),
    st.sets(st.ip_addresses(v=6).map(str), min_size=1, max_size=40),
)


@given(ADDRESSES, st.integers(1, 50), st.data())
def test_a_filter_passes_the_networks_it_was_made_of(
    addresses: set[str], limit: int, data: st.DataObject
) -> None:
    networks = merged(networks_of(addresses), limit=limit)
    assert len(networks) <= max(1, limit)
    instructions = program(networks)
    assert all(passes(instructions, address) for address in addresses)
    version = ip_address(next(iter(addresses))).version
    bit = data.draw(st.integers(0, (32 if version == 4 else 128) - 1))
    for address in addresses:
        neighbour = type(ip_address(address))(int(ip_address(address)) ^ (1 << bit))
        assert passes(instructions, str(neighbour)) == any(neighbour in net for net in networks)


@pytest.mark.parametrize(
    "addresses",
    [
        [f"200.{block}.{pod}.7" for block in range(60) for pod in range(100)],
        [f"fd00::{block:x}:{pod:x}" for block in range(30) for pod in range(100)],
    ],
)
def test_the_largest_gang_has_a_filter_that_the_kernel_takes(addresses: list[str]) -> None:
    networks = networks_of(addresses)
    instructions = program([*loopback_of(networks), *networks])
    assert len(networks) > 100
    assert len(instructions) <= 4096


def loopback_of(networks: list[Network]) -> list[Network]:
    return [ip_network("127.0.0.0/8" if networks[0].version == 4 else "::1/128")]


@pytest.mark.parametrize("addresses", [[], ["10.0.0.1", "fd00::1"], ["pod-0"]])
def test_addresses_of_no_or_two_families_have_no_networks(addresses: list[str]) -> None:
    with pytest.raises(ValueError, match=r"family|address"):
        networks_of(addresses)
