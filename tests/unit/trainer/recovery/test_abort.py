from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from drumline_trainer.recovery.abort import close_connection

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a TCP connection: ours and the peer's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as ours,
        listener.accept()[0] as theirs,
    ):
        yield ours, theirs


def test_a_connection_goes_on_while_bytes_are_on_their_way(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"half a tensor")
    assert not close_connection(ours.fileno(), force=False)
    assert ours.recv(100) == b"half a tensor"
    theirs.sendall(b"the rest")
    assert ours.recv(100) == b"the rest"


def test_a_quiet_connection_is_ended_and_an_answer_can_still_be_written(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"ready to receive")
    assert ours.recv(100) == b"ready to receive"
    while not close_connection(ours.fileno(), force=False):
        pass
    assert ours.recv(100) == b""
    ours.sendall(b"tensor")
    assert theirs.recv(100) == b"tensor"


def test_after_the_patience_any_connection_is_closed(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"x")
    assert close_connection(ours.fileno(), force=True)
    assert ours.recv(100) + ours.recv(100) == b"x"


def test_what_is_not_connected_is_refused_and_what_is_no_internet_connection_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(OSError, match="not connected"):
            close_connection(listener.fileno(), force=True)
        assert close_connection(ours.fileno(), force=True)
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
        reading, writing = os.pipe()
        with pytest.raises(OSError, match="non-socket"):
            close_connection(reading, force=True)
        os.close(reading)
        os.close(writing)
