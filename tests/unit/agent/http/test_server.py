"""The listener against clients that send anything, nothing, or too much."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from drumline_trainer.agent.http.client import PeerUnreachableError, fetch
from drumline_trainer.agent.http.message import HttpRequest, HttpResponse
from drumline_trainer.agent.http.server import MAX_CONNECTIONS, RESERVED_CONNECTIONS, HttpServer

PORT = 29400


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A server that answers every request with its own method, path and body."""

    async def echo(request: HttpRequest) -> HttpResponse:
        return HttpResponse(
            status=200, body=f"{request.method} {request.path} ".encode() + request.body
        )

    address = "127.{}.{}.1".format(*random.sample(range(1, 255), 2))
    async with HttpServer(echo, address=address, port=PORT):
        yield address


async def send(address: str, block: bytes) -> bytes:
    """Raw bytes in, everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection(address, PORT)
    try:
        writer.write(block)
        writer.write_eof()
        return await reader.read()
    except ConnectionResetError:
        return b""  # closed with bytes of ours unread
    finally:
        writer.close()


async def test_a_request_is_answered_and_the_connection_closed(address: str) -> None:
    body = b"x" * 100_000
    answer = await fetch(
        HttpRequest(method="PUT", path="/a", body=body), address=address, port=PORT
    )

    assert (answer.status, answer.body) == (200, b"PUT /a " + body)
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 9000 + b"\r\n\r\n", b"431"),
        (b"GET /one HTTP/1.1\r\n\r\nGET /two HTTP/1.1\r\n\r\n", b"200"),
    ],
    ids=["malformed", "body", "head", "pipelined"],
)
async def test_one_answer_a_connection_and_refusals_are_told(
    address: str, block: bytes, status: bytes
) -> None:
    answer = await send(address, block)

    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"/two" not in answer


async def test_it_survives_what_fuzzing_sends(address: str) -> None:
    chance = random.Random(7)
    pieces = [b"GET / HTTP/1.1", b"\r\n", b"\n", b"\0", b"Content-Length: 5", b": ", b"\xff" * 9000]
    for _ in range(200):
        await send(address, b"".join(chance.choices(pieces, k=chance.randint(0, 8))))

    assert (
        await fetch(HttpRequest(method="GET", path="/x"), address=address, port=PORT)
    ).status == 200


async def status_beside(idle: int, *, address: str, path: str) -> int:
    """What a request is answered while this many connections say nothing."""
    silent = [await asyncio.open_connection(address, PORT) for _ in range(idle)]
    try:
        request = HttpRequest(method="GET", path=path)
        return (await fetch(request, address=address, port=PORT)).status
    finally:
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize(
    ("path", "status"), [("/", 503), ("/v1/status", 503), ("/healthz", 200), ("/readyz", 200)]
)
async def test_beyond_the_limit_only_probes_are_answered(
    address: str, path: str, status: int
) -> None:
    assert await status_beside(MAX_CONNECTIONS, address=address, path=path) == status


async def test_the_reserve_for_probes_has_an_end(address: str) -> None:
    idle = MAX_CONNECTIONS + RESERVED_CONNECTIONS
    assert await status_beside(idle, address=address, path="/healthz") == 503


async def test_an_answer_that_is_no_http_counts_as_unreachable() -> None:
    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PeerUnreachableError, match="malformed status line"):
            await fetch(HttpRequest(method="GET", path="/"), address="127.0.0.1", port=port)
