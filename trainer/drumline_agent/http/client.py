"""One HTTP request to another agent, bounded in size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from drumline_agent.http.file_stream import CHUNK_BYTES, receive_file, send_file, transfer_seconds
from drumline_agent.http.message import (
    MAX_HEAD_BYTES,
    HttpError,
    HttpRequest,
    HttpResponse,
    parse_response_head,
)

REQUEST_SECONDS = 5.0


class PeerUnreachableError(Exception):
    """No complete answer arrived: refused, reset, too slow or malformed."""


async def fetch(
    request: HttpRequest, *, address: str, port: int, seconds: float = REQUEST_SECONDS
) -> HttpResponse:
    """Send one request and read its answer.

    Args:
        request: the request to send.
        address: IP address of the agent.
        port: port of the agents.
        seconds: time limit.

    Raises:
        Unreachable: no whole answer within `seconds`.
    """
    async with _peer_errors(address, seconds=seconds):
        reader, writer = await _connect(address, port)
        async with _closing(writer):
            writer.write(request.encode(host=_host(address, port)))
            await writer.drain()
            return await _answer(reader, path=request.path)


async def upload(
    request: HttpRequest, *, file: Path, size: int, address: str, port: int
) -> HttpResponse:
    """Send a request whose body is the first `size` bytes of a file.

    Args:
        request: head of the request.
        file: the file to send.
        size: number of bytes to send.
        address: IP address of the agent.
        port: port of the agents.

    Raises:
        Unreachable: no whole answer in the time that `size` may take.
        OSError: the file cannot be opened.
    """
    with file.open("rb") as body:
        async with _peer_errors(address, seconds=transfer_seconds(size)):
            reader, writer = await _connect(address, port)
            async with _closing(writer):
                head = request.encode(host=_host(address, port), body_bytes=size)
                await send_file(writer, head=head, file=body, size=size)
                return await _answer(reader, path=request.path)


async def download(
    request: HttpRequest, *, to: Path, size: int, address: str, port: int
) -> HttpResponse:
    """Send a request and write a good answer's body, which must be of `size`, to a file.

    Args:
        request: the request to send.
        to: path of the new file.
        size: number of bytes that must come.
        address: IP address of the agent.
        port: port of the agents.

    Raises:
        Unreachable: no whole answer in the time that `size` may take, or one of another size.
        OSError: the file cannot be written.
    """
    with to.open("wb") as file:
        async with _peer_errors(address, seconds=transfer_seconds(size)):
            reader, writer = await _connect(address, port)
            async with _closing(writer):
                writer.write(request.encode(host=_host(address, port)))
                await writer.drain()
                block = await reader.readuntil(b"\r\n\r\n")
                status, headers, length = parse_response_head(block, path=request.path)
                if status != 200:
                    return HttpResponse(status=status, headers=headers)
                if length != size:
                    raise PeerUnreachableError(
                        f"{address}: {length} bytes where {size} were expected"
                    )
                await receive_file(reader, writer.transport, file=file, size=size)
    return HttpResponse(status=status, headers=headers)


@asynccontextmanager
async def _peer_errors(address: str, *, seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except (
        OSError,  # TimeoutError is one
        HttpError,
        asyncio.IncompleteReadError,
        asyncio.LimitOverrunError,
    ) as error:
        raise PeerUnreachableError(f"{address}: {type(error).__name__}: {error}") from None


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _connect(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(address, port, limit=max(MAX_HEAD_BYTES, CHUNK_BYTES))


def _host(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


async def _answer(reader: asyncio.StreamReader, *, path: str) -> HttpResponse:
    block = await reader.readuntil(b"\r\n\r\n")
    status, headers, length = parse_response_head(block, path=path)
    body = await reader.readexactly(length)
    return HttpResponse(status=status, body=body, headers=headers)
