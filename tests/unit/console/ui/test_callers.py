"""What the page in the cluster remembers of its callers: what they were given, and no more."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from drumline.telemetry.listener import listening
from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.what_if import MoreQuota
from drumline_cli.errors import CommandError, NotLoggedIn
from drumline_console.ui.callers import NAMESPACE_COOKIE, ApiServer, TokenAccess
from drumline_console.ui.cluster_source import ClusterSource
from drumline_console.ui.kept_value import KeptValue
from drumline_console.ui.server import application

MINE, YOURS, MY_OTHER = "token-of-mine", "token-of-yours", "another-token-of-mine"
ASKED = MoreQuota(queue="research", pool="gpus", gpus=8)


class Cluster:
    """An API server with no objects that counts by token how often jobs are read."""

    def __init__(self) -> None:
        self.port = 0
        self.requests = 0
        self.reads: Counter[str] = Counter()
        self.users = {MINE: "me", YOURS: "you", MY_OTHER: "me"}

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if token not in self.users:
            raise web.HTTPUnauthorized
        if request.path.endswith("/selfsubjectreviews"):
            user = {"username": self.users[token]}
            return web.json_response({"status": {"userInfo": user}}, status=201)
        self.reads[token] += request.path.endswith("/trainingjobs")
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    def __str__(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster, app = Cluster(), web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.answer)
    async with listening(app, host="127.0.0.1", port=0) as cluster.port:
        yield cluster


@pytest.fixture
def access(cluster: Cluster) -> TokenAccess:
    return TokenAccess(ApiServer(url=str(cluster), ca=Path("/ca")), policy=read_policy(None))


def asking(token: str, *, namespace: str = "team") -> web.Request:
    headers = {"Authorization": f"Bearer {token}", "Cookie": f"{NAMESPACE_COOKIE}={namespace}"}
    return make_mocked_request("GET", "/", headers=headers)


async def source(access: TokenAccess, token: str, *, namespace: str = "team") -> ClusterSource:
    return await access.source(asking(token, namespace=namespace))


async def test_a_caller_finds_what_was_read_for_him_and_nobody_else_does(
    access: TokenAccess, cluster: Cluster
) -> None:
    windows = [await source(access, MINE), await source(access, MINE)]
    for window in windows:
        await window.cluster()
    assert cluster.reads == {MINE: 1}
    await (await source(access, YOURS)).cluster()
    assert cluster.reads == {MINE: 1, YOURS: 1}
    await (await source(access, MINE, namespace="b")).cluster()
    assert cluster.reads == {MINE: 2, YOURS: 1}


async def test_for_questions_a_caller_is_his_token_whatever_namespace_he_chooses(
    access: TokenAccess, cluster: Cluster
) -> None:
    for token, namespace in ((MINE, "a"), (MINE, "b"), (YOURS, "a")):
        with suppress(CommandError):  # there is no such queue
            await (await source(access, token, namespace=namespace)).what_if(ASKED)
    assert cluster.reads == {MINE: 1, YOURS: 1}


async def test_namespaces_and_tokens_of_a_user_hold_one_cluster_in_memory(
    access: TokenAccess, cluster: Cluster
) -> None:
    for number in range(4):
        for token in (MINE, MY_OTHER):
            await (await source(access, token, namespace=f"n{number}")).cluster()
    assert cluster.reads == {MINE: 4, MY_OTHER: 4}
    assert len(access._memories) == 1


async def test_a_token_is_refused_with_one_request_and_then_with_none(
    access: TokenAccess, cluster: Cluster
) -> None:
    for _ in range(3):
        with pytest.raises(NotLoggedIn):
            await source(access, "invented")
    assert cluster.requests == 1


async def test_a_token_that_expires_stops_the_reads(access: TokenAccess, cluster: Cluster) -> None:
    page = await source(access, MINE)
    del cluster.users[MINE]
    with pytest.raises(NotLoggedIn) as refused:
        await page.cluster()
    assert access.refused(asking(MINE), refused.value) is not None
    before = cluster.requests
    with pytest.raises(NotLoggedIn):
        await source(access, MINE)
    assert cluster.requests == before


async def test_tokens_that_the_api_server_refuses_leave_nothing_behind(
    access: TokenAccess,
) -> None:
    def memories() -> int:
        gc.collect()
        return sum(type(each) is KeptValue for each in gc.get_objects())

    before = memories()
    for number in range(3):
        with pytest.raises(NotLoggedIn):
            await source(access, f"invented-{number}")
    assert memories() == before


FORM = "Content-Type: application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        *((f"GET /login HTTP/1.1\r\nHost: {host}", 400) for host in ("[", "localhost:x", "[a]")),
        ("GET / HTTP/1.1\r\nHost: localhost:99999999", 400),
        ("POST /login HTTP/1.1\r\nHost: a\r\nOrigin: http://[", 403),
        ("POST /login HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data", 415),
        (f"POST /login HTTP/1.1\r\nHost: a\r\n{FORM}; charset=zlib", 401),
        (f"POST /login HTTP/1.1\r\nHost: a\r\n{FORM}\r\nContent-Encoding: gzip|token=a", 401),
        (f"POST /login HTTP/1.1\r\nHost: a\r\n{FORM}|token=%ff\xff&namespace=%00", 401),
        (f"POST /login HTTP/1.1\r\nHost: a\r\n{FORM}|{'&'.join('a=b' for _ in range(99))}", 400),
        (f"POST /job/a/b/suspend HTTP/1.1\r\nHost: a\r\n{FORM}|a=b", 401),
    ],
)
async def test_malformed_requests_leave_no_traceback(
    access: TokenAccess, caplog: pytest.LogCaptureFixture, request_text: str, status: int
) -> None:
    head, _, body = request_text.partition("|")
    if "POST" in head and "Origin" not in head:
        head += "\r\nSec-Fetch-Site: same-origin"
    head += f"\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    async with listening(application(access), host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((head + body).encode("latin-1"))
        answer = await reader.read()
        writer.close()
    assert answer.split()[1] == str(status).encode()
    assert caplog.records == []
