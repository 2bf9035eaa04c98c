from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from tools.cluster import ports
from tools.cluster.ports import LOOPBACK, ReservedPorts


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> range:
    """So few candidates that two that choose by chance alone would choose the same."""
    candidates = range(21_000, 21_500)
    monkeypatch.setattr(ports, "_PORTS", candidates)
    return candidates


def test_a_port_that_another_start_has_reserved_is_not_given_again(
    few: range, tmp_path: Path
) -> None:
    with ReservedPorts(tmp_path) as first, ReservedPorts(tmp_path) as second:
        half = len(few) // 2 - 50  # others on this machine may listen on some of them
        taken = [first.take() for _ in range(half)] + [second.take() for _ in range(half)]
    assert len(set(taken)) == len(taken)


def test_a_port_that_somebody_listens_on_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        busy = server.getsockname()[1]
        with ReservedPorts(tmp_path) as free:
            spare = free.take()
        monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: [busy, spare])
        with ReservedPorts(tmp_path) as reserved:
            assert reserved.take() == spare


def test_a_reservation_ends_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReservedPorts(tmp_path) as first:
        port = first.take()
    monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: [port])
    with ReservedPorts(tmp_path) as second:
        assert second.take() == port
