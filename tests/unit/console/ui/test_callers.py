"""What the page in the cluster remembers of its callers: what they were given, and no more."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.what_if import MoreQuota
from drumline_cli.errors import CommandError, NotLoggedIn
from drumline_console.ui.callers import NAMESPACE_COOKIE, ApiServer, TokenAccess
from drumline_console.ui.cluster_source import ClusterSource
from drumline_console.ui.kept_value import KeptValue
from drumline_console.ui.server import listening

MINE, YOURS = "token-of-mine", "token-of-yours"
ASKED = MoreQuota(queue="research", pool="gpus", gpus=8)


class Cluster:
    """An API server with no objects that counts by token how often jobs are read."""

    def __init__(self) -> None:
        self.port = 0
        self.reads: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if token not in (MINE, YOURS):
            raise web.HTTPUnauthorized
        self.reads[token] += request.path.endswith("/trainingjobs")
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    def __str__(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster, app = Cluster(), web.Application()
    app.router.add_get("/{path:.*}", cluster.answer)
    async with listening(app, host="127.0.0.1", port=0) as cluster.port:
        yield cluster


@pytest.fixture
def access(cluster: Cluster) -> TokenAccess:
    return TokenAccess(ApiServer(url=str(cluster), ca=Path("/ca")), policy=read_policy(None))


def source(access: TokenAccess, token: str, *, namespace: str = "team") -> ClusterSource:
    headers = {"Authorization": f"Bearer {token}", "Cookie": f"{NAMESPACE_COOKIE}={namespace}"}
    return access.source(make_mocked_request("GET", "/", headers=headers))


async def test_a_caller_finds_what_was_read_for_him_and_nobody_else_does(
    access: TokenAccess, cluster: Cluster
) -> None:
    windows = [source(access, MINE), source(access, MINE)]
    for window in windows:
        await window.cluster()
    assert cluster.reads == {MINE: 1}
    await source(access, YOURS).cluster()
    assert cluster.reads == {MINE: 1, YOURS: 1}
    await source(access, MINE, namespace="b").cluster()
    assert cluster.reads == {MINE: 2, YOURS: 1}


async def test_for_questions_a_caller_is_his_token_whatever_namespace_he_chooses(
    access: TokenAccess, cluster: Cluster
) -> None:
    for token, namespace in ((MINE, "a"), (MINE, "b"), (YOURS, "a")):
        with suppress(CommandError):  # there is no such queue
            await source(access, token, namespace=namespace).what_if(ASKED)
    assert cluster.reads == {MINE: 1, YOURS: 1}


async def test_tokens_that_the_api_server_refuses_leave_nothing_behind(
    access: TokenAccess,
) -> None:
    def memories() -> int:
        gc.collect()
        return sum(type(each) is KeptValue for each in gc.get_objects())

    before = memories()
    for number in range(3):
        with pytest.raises(NotLoggedIn):
            await source(access, f"invented-{number}").cluster()
    assert memories() == before
