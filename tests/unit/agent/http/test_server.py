"""The listener against clients that send anything, nothing, or too much."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from drumline_agent.http.client import PeerUnreachableError, fetch
from drumline_agent.http.message import HttpRequest, HttpResponse
from drumline_agent.http.server import (
    HEAD_SECONDS,
    MAX_CONNECTIONS,
    RESERVED_CONNECTIONS,
    HttpServer,
)
from tests.patience import HANG_SECONDS

PORT = 29400


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A server that answers every request with its own method, path and body."""

    async def echo(request: HttpRequest) -> HttpResponse:
        return HttpResponse(
            status=200, body=f"{request.method} {request.path} ".encode() + request.body
        )

    address = "127.{}.{}.1".format(*random.sample(range(1, 100), 2))
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


def visitors() -> Iterator[str]:
    """Addresses that connect: loopback has plenty."""
    return (f"127.{block}.{pod}.9" for block in range(101, 200) for pod in range(1, 255))


class Crowd:
    """Connections that are held open; closed at the end of the test."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._writers: list[asyncio.StreamWriter] = []
        self.readers: list[asyncio.StreamReader] = []

    async def come(self, *sources: str, send: bytes = b"") -> None:
        """A connection from each of these addresses, that sends so much and waits."""
        for source in sources:
            reader, writer = await asyncio.open_connection(
                self._address, PORT, local_addr=(source, 0)
            )
            writer.write(send)
            self._writers.append(writer)
            self.readers.append(reader)

    def leave(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def crowd(address: str) -> AsyncIterator[Crowd]:
    crowd = Crowd(address)
    yield crowd
    crowd.leave()


async def status(address: str, path: str = "/v1/status") -> int:
    return (await fetch(HttpRequest(method="GET", path=path), address=address, port=PORT)).status


@pytest.mark.parametrize("path", ["/v1/status", "/readyz"])
async def test_a_flood_of_one_address_keeps_nobody_else_out(
    address: str, crowd: Crowd, path: str
) -> None:
    await crowd.come(*["127.101.0.9"] * 1000)
    assert await status(address, path) == 200


@pytest.mark.parametrize("path", ["/v1/status", "/readyz"])
async def test_a_flood_of_many_addresses_displaces_itself(
    address: str, crowd: Crowd, path: str
) -> None:
    await crowd.come(*itertools.islice(visitors(), 500))
    assert await status(address, path) == 200


async def test_what_is_displaced_is_closed_at_once(address: str, crowd: Crowd) -> None:
    await crowd.come(*itertools.islice(visitors(), MAX_CONNECTIONS))
    assert await status(address) == 200
    async with asyncio.timeout(HEAD_SECONDS / 2):
        with suppress(ConnectionResetError):
            assert await crowd.readers[0].read() == b""


async def test_a_body_that_does_not_come_does_not_keep_a_place(address: str, crowd: Crowd) -> None:
    """Its signature is over the body: until then nobody knows whose it is."""
    begun = b"PUT /v1/record HTTP/1.1\r\nContent-Length: 100000\r\n\r\nx"
    await crowd.come(*itertools.islice(visitors(), 500), send=begun)
    assert await status(address) == 200


class Busy:
    """A server that answers nothing but probes until it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self._changed = asyncio.Condition()
        self.go = asyncio.Event()

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith("/v1"):
            return HttpResponse(status=200)
        async with self._changed:
            self.asked += 1
            self._changed.notify_all()
        await self.go.wait()
        return HttpResponse(status=200)

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(HANG_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.asked >= times)


@pytest.fixture
async def busy() -> AsyncIterator[tuple[Busy, str]]:
    server, address = Busy(), "127.{}.{}.1".format(*random.sample(range(1, 100), 2))
    async with HttpServer(server.answer, address=address, port=PORT):
        yield server, address
        server.go.set()


REQUEST = b"GET /v1/status HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "wanted"), [("/", 503), ("/v1/status", 503), ("/healthz", 200), ("/readyz", 200)]
)
async def test_requests_under_way_stay_and_beside_them_only_probes_are_answered(
    busy: tuple[Busy, str], path: str, wanted: int
) -> None:
    server, address = busy
    crowd = Crowd(address)
    await crowd.come(*itertools.islice(visitors(), MAX_CONNECTIONS), send=REQUEST)
    await server.until_asked(MAX_CONNECTIONS)
    assert await status(address, path) == wanted
    assert server.asked == MAX_CONNECTIONS
    crowd.leave()


async def test_the_reserve_for_probes_has_an_end(busy: tuple[Busy, str]) -> None:
    server, address = busy
    crowd, sources = Crowd(address), visitors()
    await crowd.come(*itertools.islice(sources, MAX_CONNECTIONS), send=REQUEST)
    await server.until_asked(MAX_CONNECTIONS)
    # One address may take the whole reserve, but not displace another's connection from it.
    await crowd.come(*["127.101.0.9"] * (RESERVED_CONNECTIONS + 8))
    assert await status(address, "/readyz") == 200
    crowd.leave()


async def test_an_answer_that_is_no_http_counts_as_unreachable() -> None:
    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PeerUnreachableError, match="malformed status line"):
            await fetch(HttpRequest(method="GET", path="/"), address="127.0.0.1", port=port)
