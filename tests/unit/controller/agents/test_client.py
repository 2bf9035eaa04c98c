"""The agents' client against servers that answer well, badly, slowly and far too much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from drumline.controller.agents import client as agents
from drumline.controller.agents.client import MAX_STATUS_BYTES, AgentClient, AgentError
from drumline_contract import (
    SIGNATURE_HEADER,
    AgentPhase,
    AgentStatus,
    GenerationRecord,
    Member,
    Progress,
    verify,
)
from tests.hostile_agents import HostileAgent, answering_with, silent

TOKEN = b"a token"
STATUS = AgentStatus(
    job_uid="job",
    pod_uid="pod",
    index=0,
    generation=1,
    attempt=0,
    phase=AgentPhase.RUNNING,
    progress=Progress(step=7, total_steps=10, loss=1.5),
)
RECORD = GenerationRecord(
    job_uid="job",
    generation=2,
    epoch=3,
    members=(
        Member(index=0, pod_uid="p0", address="127.0.0.1", host="j-0", ranks=2),
        Member(index=1, pod_uid="p1", address="192.0.2.1", host="j-1", ranks=2),
    ),
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Connect = Callable[[Handler], Awaitable[AgentClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A client whose agents are one server on loopback."""
    async with AsyncExitStack() as stack:

        async def start(handler: Handler) -> AgentClient:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return await stack.enter_async_context(AgentClient(port=runner.addresses[0][1]))

        yield start


def answering(body: bytes, *, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    return handler


async def test_a_status_is_read_with_a_signed_request(connect: Connect) -> None:
    async def handler(request: web.Request) -> web.Response:
        assert (request.method, request.path) == ("GET", "/v1/status")
        signature = request.headers[SIGNATURE_HEADER]
        assert verify(TOKEN, signature, b"get", b"/v1/status")
        return web.Response(body=STATUS.encode())

    client = await connect(handler)
    assert await client.status("127.0.0.1", token=TOKEN) == STATUS


async def test_a_status_that_comes_in_pieces_is_read_whole(connect: Connect) -> None:
    whole = STATUS.encode()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(whole))})
        await response.prepare(request)
        for start in range(0, len(whole), 16):
            await response.write(whole[start : start + 16])
            await asyncio.sleep(0.001)
        await response.write_eof()
        return response

    client = await connect(handler)
    assert await client.status("127.0.0.1", token=TOKEN) == STATUS


async def test_a_record_is_pushed_to_the_store_s_agent_signed_over_its_bytes(
    connect: Connect,
) -> None:
    taken: list[GenerationRecord] = []

    async def handler(request: web.Request) -> web.Response:
        assert (request.method, request.path) == ("PUT", "/v1/record")
        body = await request.read()
        assert verify(TOKEN, request.headers[SIGNATURE_HEADER], b"record", body)
        taken.append(GenerationRecord.parse(body))
        return web.Response()

    client = await connect(handler)
    await client.push(RECORD, token=TOKEN)
    assert taken == [RECORD]


async def test_a_refused_record_is_an_error_with_the_agent_s_words_bounded(
    connect: Connect,
) -> None:
    client = await connect(answering(b"older than mine " * 1000, status=409))
    with pytest.raises(AgentError, match="409") as caught:
        await client.push(RECORD, token=TOKEN)
    assert len(str(caught.value)) < 300


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(STATUS.encode()), **fields}).encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[1]", "must be a JSON object"),
        (changed(phase="resting"), "phase"),
        (changed(generation="2"), "generation"),
        (changed(generation=True), "generation"),
        (changed(attempt=-1), "attempt"),
        (changed(progress=[]), "progress"),
        (changed(progress={"step": 1.5, "total_steps": 2}), "step"),
        (changed(job_uid="x" * 5000), "job_uid"),
    ],
)
async def test_what_breaks_the_contract_is_an_error(
    connect: Connect, body: bytes, said: str
) -> None:
    client = await connect(answering(body))
    with pytest.raises(AgentError, match=said):
        await client.status("127.0.0.1", token=TOKEN)


async def test_of_an_endless_answer_only_the_allowed_part_is_read(connect: Connect) -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Length": str(1 << 40)})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    client = await connect(handler)
    with pytest.raises(AgentError, match=f"body of {MAX_STATUS_BYTES + 1} bytes"):
        await client.status("127.0.0.1", token=TOKEN)
    assert sent < 64 * 1024 * 1024


async def test_an_answer_in_chunks_is_not_read(connect: Connect) -> None:
    """Parsing chunks of a byte each costs the event loop a hundred times more than their bytes."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(STATUS.encode())
        await response.write_eof()
        return response

    client = await connect(handler)
    with pytest.raises(AgentError, match="does not state the length"):
        await client.status("127.0.0.1", token=TOKEN)


async def test_a_healthy_agent_is_answered_while_64_silent_ones_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CONNECT_SECONDS", "TIMEOUT_SECONDS"):  # no silent one is given up meanwhile
        monkeypatch.setattr(agents, name, 3600.0)
    async with (
        HostileAgent("127.0.0.2", silent) as mute,
        HostileAgent("127.0.0.3", answering_with(STATUS), port=mute.port) as healthy,
        AgentClient(port=mute.port) as client,
    ):
        waiting = [asyncio.create_task(client.status(mute.address, token=TOKEN)) for _ in range(64)]
        await asyncio.sleep(0)
        assert await client.status(healthy.address, token=TOKEN) == STATUS
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_packed_answer_is_not_unpacked(connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        response = web.Response(body=b"x" * 1_000_000)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    client = await connect(handler)
    with pytest.raises(AgentError):
        await client.status("127.0.0.1", token=TOKEN)


async def test_no_redirect_is_followed(connect: Connect) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/v1/elsewhere")

    client = await connect(handler)
    with pytest.raises(AgentError, match="answered 302"):
        await client.status("127.0.0.1", token=TOKEN)
    assert asked == ["/v1/status"]


async def test_an_agent_that_is_not_there_is_an_error() -> None:
    async with AgentClient(port=1) as client:
        with pytest.raises(AgentError, match=r"agent at 127\.0\.0\.1: "):
            await client.status("127.0.0.1", token=TOKEN)


async def test_an_agent_that_says_nothing_is_given_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "TIMEOUT_SECONDS", 0.05)
    gone = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await gone.wait()
        return web.Response()

    client = await connect(handler)
    with pytest.raises(AgentError, match="TimeoutError"):
        await client.status("127.0.0.1", token=TOKEN)
    gone.set()


async def test_a_connection_cut_in_mid_answer_is_an_error(connect: Connect) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.abort()
        return response

    client = await connect(handler)
    with pytest.raises(AgentError):
        await client.status("127.0.0.1", token=TOKEN)
