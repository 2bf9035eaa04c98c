"""The store's socket: who is heard, and where it listens."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from drumline_agent.host import peer_filter
from drumline_agent.host.peer_filter import Network
from drumline_trainer.recovery.rendezvous_store import listen, store_on
from tests.patience import HANG_SECONDS


def test_a_store_with_peers_serves_loopback_over_its_filter() -> None:
    listener = listen(0, address="127.0.0.1", peers=["10.0.0.1/32"])
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    store = store_on(listener)
    guest = TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=HANG_SECONDS))
    guest.set("key", "value")
    assert store.get("key") == b"value"


def test_the_filter_is_there_before_the_socket_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    listening: list[int] = []

    def attach(listener: socket.socket, networks: Sequence[Network]) -> int:
        listening.append(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        assert [str(network) for network in networks] == ["10.0.0.0/24", "10.0.2.0/24"]
        return 2

    monkeypatch.setattr(peer_filter, "attach", attach)
    listen(0, address="127.0.0.1", peers=["10.0.0.0/24", "10.0.2.0/24"]).close()
    assert listening == [0]


def test_where_no_filter_can_be_set_it_says_so_and_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attach(_: socket.socket, __: object) -> int:
        raise OSError(92, "Protocol not available")

    monkeypatch.setattr(peer_filter, "attach", attach)
    with listen(0, address="127.0.0.1", peers=["10.0.0.1/32"]) as listener:
        socket.create_connection(listener.getsockname(), timeout=HANG_SECONDS).close()
    assert "the store hears every address" in capsys.readouterr().out
