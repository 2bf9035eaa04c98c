"""What the page in the cluster remembers of its callers: what they were given, and no more."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from drumline.cli.decide.cycle import read_policy
from drumline.cli.ui.callers import NAMESPACE_COOKIE, ApiServer, TokenAccess
from drumline.cli.ui.cluster_source import LiveCluster
from drumline.cli.ui.server import application, listening


def an_access(url: str = "http://h") -> TokenAccess:
    return TokenAccess(ApiServer(url=url, ca=Path("/ca")), policy=read_policy(None))


@pytest.fixture
def access() -> TokenAccess:
    return an_access()


def source(access: TokenAccess, *, token: str, namespace: str = "team") -> LiveCluster:
    headers = {"Authorization": f"Bearer {token}", "Cookie": f"{NAMESPACE_COOKIE}={namespace}"}
    live = access.source(make_mocked_request("GET", "/", headers=headers))
    assert isinstance(live, LiveCluster)
    return live


def test_a_caller_finds_his_own_again_and_nobody_elses(access: TokenAccess) -> None:
    mine = source(access, token="token-of-mine")  # noqa: S106 - of nobody
    assert source(access, token="token-of-mine")._memory is mine._memory  # noqa: S106
    assert source(access, token="token-of-yours")._memory is not mine._memory  # noqa: S106
    assert source(access, token="token-of-mine", namespace="b")._memory is not mine._memory  # noqa: S106
    assert "token" not in repr(dict(access._memories))


def test_for_questions_a_caller_is_his_token_whatever_namespace_he_chooses(
    access: TokenAccess,
) -> None:
    first, second = (source(access, token="token-of-mine", namespace=name) for name in "ab")  # noqa: S106
    assert first._caller.key == second._caller.key
    assert first._caller.key != source(access, token="token-of-yours")._caller.key  # noqa: S106
    assert first._limits is second._limits


async def test_tokens_that_the_api_server_refuses_leave_nothing_behind() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        raise web.HTTPUnauthorized

    cluster = web.Application()
    cluster.router.add_get("/{path:.*}", refuse)
    async with listening(cluster, host="127.0.0.1", port=0) as behind:
        access = an_access(f"http://127.0.0.1:{behind}")
        mine = source(access, token="token-of-mine")  # noqa: S106 - of nobody
        app = application(access)
        async with (
            listening(app, host="127.0.0.1", port=0) as port,
            aiohttp.ClientSession() as session,
        ):
            for number in range(3):
                headers = {"Authorization": f"Bearer invented-{number}"}
                url = f"http://127.0.0.1:{port}/"
                async with session.get(url, headers=headers) as answer:
                    assert answer.status == 401
    async with asyncio.timeout(60):  # the task of the last request may not have ended yet
        while list(access._memories.values()) != [mine._memory]:
            await asyncio.sleep(0)
            gc.collect()
