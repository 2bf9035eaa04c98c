from __future__ import annotations

import asyncio

import pytest

from drumline_agent.commands.client_socket import BURST_LINES as BURST
from drumline_agent.commands.client_socket import ClientConnection
from drumline_client.wire import ClientMessage, WorkDone, encode


class Pipe(asyncio.Transport):
    """Counts what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is written here."""

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


async def test_a_flood_is_not_read_beyond_the_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[ClientMessage] = []
    enough = asyncio.Event()

    def on_message(_: ClientConnection, message: ClientMessage) -> None:
        heard.append(message)
        if len(heard) == BURST + 10:
            enough.set()

    connection = ClientConnection(
        admit=lambda _: True, on_message=on_message, on_closed=lambda _: None
    )
    pipe = Pipe()
    connection.connection_made(pipe)
    with monkeypatch.context() as still:
        still.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
        connection.data_received(encode(WorkDone()) * (BURST + 10))
        assert len(heard) == BURST
    assert not pipe.reads
    await enough.wait()  # nothing of what it had said is lost
    assert pipe.reads
    assert not pipe.closed
