"""Connections that a listener keeps, their time, and a log that clients cannot write."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest
import uvloop
from aiohttp import web

from drumline.telemetry.listener import Bounds, body_of, listening
from tests.patience import HANG_SECONDS

HEAD = b" HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /" + HEAD + b"\r\n"
POST = b"POST /" + HEAD + b"Content-Length: 2\r\n\r\n"
ANSWER_BYTES = 1 << 26
"""More than the buffers of a connection hold."""


class Client:
    """One connection, from an address of its own."""

    def __init__(self, port: int, *, address: str = "127.0.0.1") -> None:
        self.port = port
        self.address = address

    async def open(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(self.address, 0)
        )
        return self

    async def rest(self) -> bytes:
        """Return everything until the connection ends."""
        received = b""
        async with asyncio.timeout(HANG_SECONDS):
            with suppress(OSError):
                while chunk := await self.reader.read(1 << 16):
                    received += chunk
        self.writer.close()
        return received

    async def status(self, request: bytes) -> int:
        """Return the status of the answer, whose body is read."""
        self.writer.write(request)
        async with asyncio.timeout(HANG_SECONDS):
            first, *fields = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            length = next(each for each in fields if each.startswith(b"Content-Length: "))
            await self.reader.readexactly(int(length.split()[1]))
        return int(first.split()[1])

    async def is_refused(self) -> bool:
        """Return whether the connection ends before a byte of an answer arrives."""
        try:
            return await self.reader.read(1) == b""
        except OSError:
            return True


async def begun(pages: Pages, port: int, path: bytes) -> Client:
    """Return a client whose request is being answered.

    A busy machine may not read a request within the waiting time, so the client asks again.
    """
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            client = await Client(port).open()
            client.writer.write(b"GET " + path + HEAD + b"\r\n")
            ended = asyncio.ensure_future(client.is_refused())
            started = asyncio.ensure_future(pages.begun.wait())
            await asyncio.wait({ended, started}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            started.cancel()
            await asyncio.wait({ended, started})
            if pages.begun.is_set():
                return client
            client.writer.close()


async def answered(port: int) -> int:
    """Return the status of the first answer. A busy machine may end a connection before it."""
    while True:
        client = await Client(port).open()
        try:
            return await client.status(GET)
        except (OSError, asyncio.IncompleteReadError):
            continue
        finally:
            client.writer.close()


class Pages:
    """An application with a page for each case."""

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.app = web.Application()
        self.app.router.add_get("/", self._ok)
        self.app.router.add_post("/", self._body)
        self.app.router.add_get("/gated", self._gated)
        self.app.router.add_get("/large", self._large)

    async def _ok(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _body(self, request: web.Request) -> web.Response:
        return web.Response(body=await body_of(request))

    async def _gated(self, _request: web.Request) -> web.Response:
        self.begun.set()
        await self.gate.wait()
        return web.Response(text="ok")

    async def _large(self, _request: web.Request) -> web.Response:
        self.begun.set()
        return web.Response(body=bytes(ANSWER_BYTES))


async def test_silent_connections_of_others_give_way_to_a_probe() -> None:
    bounds = Bounds(total=4, of_address=3)
    async with listening(Pages().app, host="127.0.0.1", port=0, bounds=bounds) as port:
        flood = [await Client(port, address="127.0.0.2").open() for _ in range(3)]
        other = await Client(port, address="127.0.0.3").open()
        refused = await Client(port, address="127.0.0.2").open()
        assert await refused.rest() == b""
        probe = await Client(port).open()
        assert await probe.status(GET) == 200
        assert await flood[0].rest() == b""
        for kept in (*flood[1:], other, probe):
            assert await kept.status(GET) == 200
            kept.writer.close()


@pytest.mark.parametrize("sent", [b"", GET[:-2], POST + b"a"])
async def test_a_connection_without_a_whole_request_ends(sent: bytes) -> None:
    bounds = Bounds(waiting_seconds=0.05)
    async with listening(Pages().app, host="127.0.0.1", port=0, bounds=bounds) as port:
        client = await Client(port).open()
        client.writer.write(sent)
        assert await client.rest() == b""


async def test_a_request_that_is_answered_slowly_is_kept() -> None:
    pages = Pages()
    bounds = Bounds(total=2, waiting_seconds=0.05)
    async with listening(pages.app, host="127.0.0.1", port=0, bounds=bounds) as port:
        slow = await begun(pages, port, b"/gated")
        for _ in range(3):  # each lives as long as a silent connection may
            await (await Client(port).open()).rest()
        pages.gate.set()
        assert await slow.status(b"") == 200
        assert await slow.rest() == b""


async def test_an_answer_that_nobody_reads_ends() -> None:
    pages = Pages()
    bounds = Bounds(waiting_seconds=0.05)
    async with listening(pages.app, host="127.0.0.1", port=0, bounds=bounds) as port:
        deaf = await begun(pages, port, b"/large")
        for _ in range(3):
            await (await Client(port).open()).rest()
        assert len(await deaf.rest()) < ANSWER_BYTES


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        (b"GET /" + HEAD + b"Content-Length: x\r\n\r\n", 400),
        (b"POST /" + HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab", 200),
    ],
)
async def test_malformed_requests_leave_no_line(
    request_of: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(Pages().app, host="127.0.0.1", port=0) as port:
        client = await Client(port).open()
        assert await client.status(request_of) == status
        client.writer.close()
    assert not caplog.records


def test_a_listener_answers_and_ends_silent_connections_under_uvloop() -> None:
    """Containers run uvloop, whose transports are of no class of asyncio."""

    async def answers() -> tuple[int, bytes, bytes]:
        bounds = Bounds(total=2, of_address=1, waiting_seconds=0.05)
        async with listening(Pages().app, host="127.0.0.1", port=0, bounds=bounds) as port:
            silent = await Client(port, address="127.0.0.2").open()
            refused = await Client(port, address="127.0.0.2").open()
            status = await answered(port)
            return status, await refused.rest(), await silent.rest()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(answers()) == (200, b"", b"")
