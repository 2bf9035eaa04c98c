from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from tools.cluster.relay import serve


@pytest.fixture
async def relayed() -> AsyncIterator[int]:
    """The port of a relay to a server that answers, in capitals, once its peer has ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    async with contextlib.AsyncExitStack() as stack:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        await stack.enter_async_context(server)
        listener = socket.create_server(("127.0.0.1", 0))
        far = server.sockets[0].getsockname()[1]
        relay = asyncio.create_task(serve(listener, host="127.0.0.1", port=far))
        yield listener.getsockname()[1]
        relay.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await relay


async def test_both_directions_pass_and_one_may_end_before_the_other(relayed: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relayed)
    writer.write(b"a" * 300_000)
    writer.write_eof()
    assert await reader.read() == b"A" * 300_000
    writer.close()


async def test_nobody_behind_it_closes_the_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        relay = asyncio.create_task(serve(listener, host="127.0.0.1", port=unused.getsockname()[1]))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        assert await reader.read() == b""
        writer.close()
        relay.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await relay
