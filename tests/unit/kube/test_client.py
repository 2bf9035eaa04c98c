"""What the client does with answers that a healthy API server seldom gives."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from drumline.kube import errors, reads, writes
from drumline.kube.client import NO_ANSWER, KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.kinds import NODES, PODS
from drumline.kube.request import Request, Sending, Verb
from drumline.kube.retry import ONCE, RetryPolicy
from tests.unit.kube.conftest import Serve

_POD = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "5"}}
_QUICK = RetryPolicy(attempts=3, base_seconds=0.001, cap_seconds=0.001)


def _scripted(answers: list[web.Response], seen: list[web.Request]) -> Any:
    script: Iterator[web.Response] = iter(answers)

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return next(script)

    return handler


def _ok() -> web.Response:
    return web.json_response(_POD)


def _status(code: int, reason: str = "", **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": f"no: {reason}"}
    return web.json_response(body, status=code, headers=headers)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (418, "Teapot", errors.StatusError),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
async def test_every_refusal_has_its_type_and_carries_the_servers_words(
    serve: Serve, code: int, reason: str, kind: type[errors.StatusError]
) -> None:
    credentials = await serve(_scripted([_status(code, reason)], []))
    async with KubeClient(credentials, retry=ONCE) as client:
        with pytest.raises(errors.StatusError) as caught:
            await reads.get(client, NODES, name="n")
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert caught.value.message == f"no: {reason}"


async def test_a_refusal_that_is_no_status_is_quoted_within_bounds(serve: Serve) -> None:
    answer = web.Response(status=502, text="<html>" + "x" * 100_000)
    credentials = await serve(_scripted([answer], []))
    async with KubeClient(credentials, retry=ONCE) as client:
        with pytest.raises(errors.ServerError) as caught:
            await reads.get(client, NODES, name="n")
    assert caught.value.message.startswith("<html>")
    assert len(caught.value.message) <= 2048


async def test_overload_and_server_faults_are_tried_again(serve: Serve) -> None:
    seen: list[web.Request] = []
    answers = [_status(429, **{"Retry-After": "0"}), _status(503), _ok()]
    credentials = await serve(_scripted(answers, seen))
    async with KubeClient(credentials, retry=_QUICK) as client:
        written = await writes.create(client, PODS, namespace="a", body=_POD)
    assert written == writes.Written(uid="u", resource_version="5")
    assert len(seen) == 3


async def test_pauses_that_the_server_asks_for_end_with_the_patience(serve: Serve) -> None:
    """A webhook may ask for a pause each time, and a cycle waits for its writes."""
    seen: list[web.Request] = []
    answers = [_status(429, **{"Retry-After": "1"}) for _ in range(5)]
    credentials = await serve(_scripted(answers, seen))
    patient = RetryPolicy(attempts=5, base_seconds=0.001, spent_seconds=0.9)
    async with KubeClient(credentials, retry=patient) as client:
        with pytest.raises(errors.TooManyRequests):
            await writes.create(client, PODS, namespace="a", body=_POD)
    assert len(seen) == 2


async def test_the_last_attempts_failure_is_raised(serve: Serve) -> None:
    seen: list[web.Request] = []
    credentials = await serve(_scripted([_status(503) for _ in range(3)], seen))
    async with KubeClient(credentials, retry=_QUICK) as client:
        with pytest.raises(errors.ServerError):
            await reads.get(client, NODES, name="n")
    assert len(seen) == 3


async def test_a_refused_write_is_not_tried_again(serve: Serve) -> None:
    seen: list[web.Request] = []
    credentials = await serve(_scripted([_status(403, "Forbidden")], seen))
    async with KubeClient(credentials, retry=_QUICK) as client:
        with pytest.raises(errors.Forbidden):
            await writes.create(client, PODS, namespace="a", body=_POD)
    assert len(seen) == 1


async def test_a_closed_port_is_unreachable(serve: Serve, unused_tcp_port: int) -> None:
    del serve
    credentials = _credentials(f"http://127.0.0.1:{unused_tcp_port}")
    async with KubeClient(credentials, retry=ONCE) as client:
        with pytest.raises(errors.Unreachable):
            await reads.get(client, NODES, name="n")


async def test_a_server_that_does_not_answer_meets_the_deadline(serve: Serve) -> None:
    answered = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await answered.wait()
        return _ok()

    credentials = await serve(silent)
    async with KubeClient(credentials) as client:
        with pytest.raises(errors.Unreachable, match="Timeout"):
            await reads.get(
                client, NODES, name="n", sending=Sending(retry=ONCE, deadline_seconds=0.05)
            )
    answered.set()


async def test_a_request_that_met_its_deadline_is_not_sent_again(serve: Serve) -> None:
    seen: list[web.Request] = []
    answered = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        seen.append(request)
        await answered.wait()
        return _ok()

    credentials = await serve(silent)
    patient = RetryPolicy(attempts=3, base_seconds=0.001, cap_seconds=0.001, spent_seconds=0.04)
    async with KubeClient(credentials, retry=patient) as client:
        with pytest.raises(errors.Unreachable, match="Timeout"):
            await reads.get(client, NODES, name="n", sending=Sending(deadline_seconds=0.05))
    answered.set()
    assert len(seen) == 1


async def test_writes_of_a_namespace_that_hang_delay_no_other(serve: Serve) -> None:
    go = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if "/namespaces/slow/" in request.path:
            await go.wait()
        return _ok()

    credentials = await serve(handler)
    async with KubeClient(credentials, write_limit=4) as client, asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(writes.create(client, PODS, namespace="slow", body=_POD))
        await asyncio.sleep(0)
        assert await writes.create(client, PODS, namespace="other", body=_POD)
        go.set()


async def test_the_server_gets_the_deadline_of_a_write(serve: Serve) -> None:
    seen: list[web.Request] = []
    credentials = await serve(_scripted([_ok(), _ok()], seen))
    async with KubeClient(credentials) as client:
        await writes.create(client, PODS, namespace="a", body=_POD)
        await reads.get(client, NODES, name="n")
    assert [request.query.get("timeout") for request in seen] == ["5s", None]


async def test_a_closed_fence_lets_no_write_out_but_every_read(serve: Serve) -> None:
    seen: list[web.Request] = []

    def closed() -> None:
        raise errors.NotLeader("not now")

    credentials = await serve(_scripted([_ok()], seen))
    async with KubeClient(credentials, fence=closed) as client:
        await reads.get(client, NODES, name="n")
        outcomes = [
            writes.create(client, PODS, namespace="a", body=_POD),
            writes.delete(client, PODS, namespace="a", name="p", uid="u"),
            writes.delete_collection(client, PODS, namespace="a", label_selector="x"),
            writes.merge_patch(client, PODS, namespace="a", name="p", body={}),
        ]
        for outcome in outcomes:
            with pytest.raises(errors.NotLeader):
                await outcome
    assert [request.method for request in seen] == ["GET"]


async def test_a_write_that_waited_for_its_turn_asks_the_fence_when_it_leaves(
    serve: Serve,
) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()
    leading = True

    async def slow(_: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return _ok()

    def fence() -> None:
        if not leading:
            raise errors.NotLeader("deposed")

    credentials = await serve(slow)
    async with KubeClient(credentials, fence=fence, write_limit=1) as client:
        first = asyncio.create_task(writes.create(client, PODS, namespace="a", body=_POD))
        await arrived.wait()
        second = asyncio.create_task(writes.create(client, PODS, namespace="a", body=_POD))
        leading = False
        go.set()
        assert await first
        with pytest.raises(errors.NotLeader):
            await second


async def test_a_repeated_attempt_asks_the_fence_again(serve: Serve) -> None:
    seen: list[web.Request] = []
    asked = itertools.count()

    def once() -> None:
        if next(asked):
            raise errors.NotLeader("deposed")

    credentials = await serve(_scripted([_status(503)], seen))
    async with KubeClient(credentials, fence=once, retry=_QUICK) as client:
        with pytest.raises(errors.NotLeader):
            await writes.create(client, PODS, namespace="a", body=_POD)
    assert len(seen) == 1


async def test_a_refused_token_is_read_again_once(serve: Serve) -> None:
    seen: list[web.Request] = []
    tokens = iter(["old", "new"])
    served = await serve(_scripted([_status(401), _ok(), _status(401)], seen))
    credentials = dataclasses.replace(served, token=Token(lambda: next(tokens)))
    async with KubeClient(credentials, retry=ONCE) as client:
        await reads.get(client, NODES, name="n")
    assert [request.headers["Authorization"] for request in seen] == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(("pause_seconds", "connections"), [(45, 1), (75, 2)])
async def test_a_connection_is_kept_as_long_as_the_server_surely_keeps_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, pause_seconds: int, connections: int
) -> None:
    """A burst after a pause must not begin with handshakes; the server closes after 90 s."""
    ports: set[int] = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return _ok()

    credentials = await serve(handler)
    async with KubeClient(credentials) as client:
        await writes.create(client, PODS, namespace="a", body=_POD)
        later = time.monotonic() + pause_seconds
        monkeypatch.setattr("aiohttp.connector.monotonic", lambda: later)
        await writes.create(client, PODS, namespace="a", body=_POD)
    assert len(ports) == connections


async def test_every_attempt_is_observed(serve: Serve, unused_tcp_port: int) -> None:
    noted: list[tuple[Verb, str, int]] = []

    def observe(*, verb: Verb, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        noted.append((verb, resource, code))

    credentials = await serve(_scripted([_status(503), _ok()], []))
    async with KubeClient(credentials, observe=observe, retry=_QUICK) as client:
        await writes.create(client, PODS, namespace="a", body=_POD)
    nowhere = _credentials(f"http://127.0.0.1:{unused_tcp_port}")
    async with KubeClient(nowhere, observe=observe, retry=ONCE) as client:
        with pytest.raises(errors.Unreachable):
            await reads.get(client, NODES, name="n")
    assert noted == [
        (Verb.CREATE, "pods", 503),
        (Verb.CREATE, "pods", 200),
        (Verb.GET, "nodes", NO_ANSWER),
    ]


def _credentials(server: str) -> Credentials:
    return Credentials(server=server, token=Token(lambda: None))


async def test_what_a_request_is_for_is_told_apart_by_its_user_agent(serve: Serve) -> None:
    seen: list[web.Request] = []
    async with KubeClient(await serve(_scripted([_ok(), _ok()], seen))) as client:
        await reads.get(client, NODES, name="n")
        await reads.get(client, NODES, name="n", sending=Sending(purpose="leader-election"))
    assert [request.headers["User-Agent"] for request in seen] == [
        "drumline",
        "drumline/leader-election",
    ]


async def test_every_request_asks_to_act_as_the_identity_of_the_kubeconfig(serve: Serve) -> None:
    seen: list[web.Request] = []
    asked = (
        ("Impersonate-User", "ada"),
        ("Impersonate-Group", "ml"),
        ("Impersonate-Group", "ops"),
    )
    credentials = dataclasses.replace(
        await serve(_scripted([_ok(), _ok()], seen)), impersonation=asked
    )
    async with KubeClient(credentials) as client:
        await reads.get(client, NODES, name="n")
        await reads.get(client, PODS, namespace="x", name="n")
    for request in seen:
        assert request.headers["Impersonate-User"] == "ada"
        assert request.headers.getall("Impersonate-Group") == ["ml", "ops"]


async def test_an_error_of_the_reader_of_a_stream_is_no_error_of_the_server(serve: Serve) -> None:
    credentials = await serve(_scripted([web.Response(text="a line\n")], []))
    request = Request(verb=Verb.WATCH, resource=PODS, path=PODS.path())

    async def read_until_the_pipe_breaks() -> None:
        async with (
            KubeClient(credentials) as client,
            client.stream(request, silence_seconds=60) as chunks,
        ):
            async for _ in chunks:
                raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await read_until_the_pipe_breaks()
