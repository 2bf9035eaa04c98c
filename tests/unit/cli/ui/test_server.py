"""The server's doors: the secret, the host, other pages; and that buttons act as the user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from drumline.cli.errors import NotAnswered
from drumline.cli.ui.cluster_source import FRESH_SECONDS, LiveCluster
from drumline.cli.ui.server import new_secret, serve
from drumline.kube.credentials import Credentials, Token
from drumline.overview.objects import ClusterObjects
from tests.unit.cli.ui.shown import Shown
from tests.unit.overview.objects import a_cluster, a_job

SECRET = "a" * 43


class Browser:
    def __init__(self, session: aiohttp.ClientSession, address: str, shown: Shown) -> None:
        self.session, self.address, self.shown = session, address, shown
        self.root = address.removesuffix(f"{SECRET}/")

    async def status(self, method: str, url: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, url, headers=named, allow_redirects=False
        ) as answer:
            return answer.status

    async def page(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.address + path) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    shown = Shown()
    async with (
        serve(shown, port=0, secret=SECRET) as address,
        aiohttp.ClientSession() as session,
    ):
        yield Browser(session, address, shown)


async def test_the_overview_and_a_job_are_served(browser: Browser) -> None:
    status, text = await browser.page("")
    assert (status, "team/waits" in text) == (200, True)
    status, text = await browser.page("job/team/runs")
    assert (status, "Suspend" in text) == (200, True)
    for name in ("report.css", "ui.css", "live.js"):
        assert (await browser.page(f"asset/{name}"))[0] == 200


@pytest.mark.parametrize("path", ["", "asset/live.js", "job/team/none", "asset/none"])
async def test_every_answer_carries_the_policy(browser: Browser, path: str) -> None:
    async with browser.session.get(browser.address + path) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Set-Cookie" not in answer.headers
        assert not [name for name in answer.headers if name.startswith("Access-Control-")]


@pytest.mark.parametrize("path", ["", "x/", f"{SECRET[:-1]}/", f"{SECRET}b/", "job/team/runs"])
async def test_without_the_secret_there_is_nothing(browser: Browser, path: str) -> None:
    assert await browser.status("GET", browser.root + path) == 404
    assert await browser.status("POST", f"{browser.root}{path}/job/team/runs/suspend") == 404
    assert browser.shown.acts == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_another_name_of_this_machine_is_refused(browser: Browser, host: str) -> None:
    assert await browser.status("GET", browser.address, Host=host) in {400, 421}


async def test_a_button_does_what_it_says(browser: Browser) -> None:
    origin = browser.root.removesuffix("/")
    for action in ("suspend", "resume"):
        url = f"{browser.address}job/team/runs/{action}"
        assert await browser.status("POST", url, Origin=origin, Sec_Fetch_Site="same-origin") == 303
    assert browser.shown.acts == [("team", "runs", True), ("team", "runs", False)]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "null", "Sec_Fetch_Site": "cross-site"},
    ],
)
async def test_another_page_presses_no_button(browser: Browser, headers: dict[str, str]) -> None:
    url = f"{browser.address}job/team/runs/suspend"
    assert await browser.status("POST", url, **headers) == 403
    assert browser.shown.acts == []


async def test_nothing_acts_by_being_looked_at(browser: Browser) -> None:
    assert await browser.status("GET", f"{browser.address}job/team/runs/suspend") in {404, 405}
    assert await browser.status("POST", f"{browser.address}job/team/runs/delete") == 404
    assert browser.shown.acts == []


async def test_what_the_cluster_refuses_is_said(browser: Browser) -> None:
    status, text = await browser.page("job/team/none")
    assert status == 502
    assert "trainingjob &#x27;none&#x27; not found" in text


def test_secrets_are_long_and_differ() -> None:
    assert len({new_secret() for _ in range(9)}) == 9
    assert len(new_secret()) >= 43


async def test_windows_that_ask_together_read_once_and_fresh_content_is_kept() -> None:
    reads: list[Any] = []
    now = [0.0]

    async def read(_credentials: Credentials, wanted: Any, *, own: str) -> ClusterObjects:
        reads.append((wanted.nodes, own))
        await asyncio.sleep(0)
        return a_cluster()

    credentials = Credentials(server="http://h", token=Token(lambda: None), namespace="team")
    live = LiveCluster(credentials, clock=lambda: now[0], read=read)
    await asyncio.gather(*(live.cluster() for _ in range(5)))
    assert reads == [(True, "team")]
    now[0] = FRESH_SECONDS + 1
    await live.cluster()
    assert len(reads) == 2


async def test_who_may_not_list_nodes_sees_the_rest() -> None:
    asked: list[bool] = []

    async def read(_credentials: Credentials, wanted: Any, *, own: str) -> ClusterObjects:
        del own
        asked.append(wanted.nodes)
        if wanted.nodes:
            raise NotAnswered("nodes: not allowed to read")
        return a_cluster(a_job("waits"))

    credentials = Credentials(server="http://h", token=Token(lambda: None))
    seen = await LiveCluster(credentials, clock=lambda: 0.0, read=read).cluster()
    assert (asked, len(seen.jobs)) == ([True, False], 1)
