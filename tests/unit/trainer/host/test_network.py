from __future__ import annotations

import socket

import pytest

from drumline_trainer.host.network import interface_of


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53", "::1"])
def test_loopback_addresses_are_on_lo(address: str) -> None:
    assert interface_of(address) == "lo"


def test_addresses_of_this_machine_are_on_their_interface() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used
        address = probe.getsockname()[0]
    assert interface_of(address) in {name for _, name in socket.if_nameindex()}


def test_a_foreign_address_is_an_error_with_its_name() -> None:
    with pytest.raises(OSError, match=r"203\.0\.113\.9"):
        interface_of("203.0.113.9")
