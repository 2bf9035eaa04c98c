"""Files over a connection: whole, cut off, onto a full disk, and with an answer behind them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drumline_agent.http.file_stream import CHUNK_BYTES, receive_file, send_file

SIZES = [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7, 4_000_003]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(
    serve: Serve,
) -> AsyncGenerator[Connection]:
    """A connection to `serve`, whose errors are raised here."""
    served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            served.set_result(None)
        except (OSError, asyncio.IncompleteReadError) as error:
            served.set_exception(error)
        finally:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0, limit=CHUNK_BYTES) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
            await served
        finally:
            writer.close()


@pytest.mark.parametrize("size", SIZES)
async def test_a_file_arrives_whole_and_the_connection_goes_on(tmp_path: Path, size: int) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(size))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"head\n"
        with copy.open("wb") as file:
            await receive_file(reader, writer.transport, file=file, size=size)
        writer.write(await reader.readline())

    async with connected(serve) as (reader, writer):
        with source.open("rb") as file:
            await send_file(writer, head=b"head\n", file=file, size=size)
        writer.write(b"behind the file\n")
        assert await reader.readline() == b"behind the file\n"
    assert copy.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("sent", [0, 100, 2 * CHUNK_BYTES])
async def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, sent: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (tmp_path / "copy").open("wb") as file, pytest.raises(asyncio.IncompleteReadError):
            await receive_file(reader, writer.transport, file=file, size=3 * CHUNK_BYTES)

    async with connected(serve) as (_, writer):
        writer.write(bytes(sent))
        writer.write_eof()


async def test_a_full_disk_is_an_error() -> None:
    size = 4 * CHUNK_BYTES

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        with full as file, pytest.raises(OSError, match="No space left"):
            await receive_file(reader, writer.transport, file=file, size=size)

    async with connected(serve) as (_, writer):
        writer.write(bytes(size))
