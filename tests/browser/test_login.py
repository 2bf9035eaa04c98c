"""The page in the cluster in a browser: a token in a cookie that this page alone gets.

The API server here only says who is known: what it gives to whom is tried in
tests/integration/cli/test_page.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from drumline.telemetry.listener import listening
from drumline_cli.decide.cycle import read_policy
from drumline_console.ui.callers import ApiServer, TokenAccess
from drumline_console.ui.server import application
from tests.browser.devtools import Page
from tests.browser.test_page import enter
from tests.unit.overview.objects import a_job

TOKEN = "a-token-that-is-known"  # noqa: S105 - of nobody


async def api_server(request: web.Request) -> web.Response:
    """One job for who has the token."""
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise web.HTTPUnauthorized
    items = [a_job("waits")] if request.path.endswith("/trainingjobs") else []
    return web.json_response({"kind": "List", "metadata": {}, "items": items})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of the page."""
    cluster = web.Application()
    cluster.router.add_route("*", "/{path:.*}", api_server)
    async with listening(cluster, host="127.0.0.1", port=0) as taken:
        server = ApiServer(url=f"http://127.0.0.1:{taken}", ca=Path("/none"))
        app = application(TokenAccess(server, policy=read_policy(None)))
        async with listening(app, host="127.0.0.1", port=0) as port:
            yield port


async def log_in(page: Page, token: str) -> None:
    await page.value(f"document.querySelector('[name=token]').value = '{token}'")
    await enter(page, "Log in")


async def test_a_token_that_is_known_opens_the_page_until_it_is_given_up(
    page: Page, port: int
) -> None:
    address = f"http://drumline.localhost:{port}/"
    await page.open(address)
    assert await page.value("document.querySelector('h1').textContent") == "Log in"
    await log_in(page, "a-token-of-nobody")
    assert await page.value("document.querySelector('h1').textContent") == "Log in"
    await log_in(page, TOKEN)
    assert await page.value("location.href") == address
    assert "team/waits" in await page.value("document.body.textContent")
    assert await page.value("document.cookie") == ""
    await page.open(f"http://127.0.0.1:{port}/")  # another name of the same port
    assert "drumline.localhost" in await page.value("document.body.textContent")
    await page.open(address)
    await enter(page, "login")
    await enter(page, "Log out")
    await page.open(address)
    assert await page.value("document.querySelector('h1').textContent") == "Log in"
    assert not [each for each in page.problems if "401" not in each]
