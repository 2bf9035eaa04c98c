"""Who gets in: the secret, the host, other pages; that buttons act as the user; what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import pytest

from drumline.kube.credentials import Credentials, Token
from drumline.overview.objects import ClusterObjects
from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.what_if import Change, WhatIfAnswer
from drumline_cli.errors import Busy, NotAnswered
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.report.job_input import JobInput
from drumline_console.ui.cluster_source import Caller, LiveCluster, SharedLimits
from drumline_console.ui.fair_turns import FairTurns
from drumline_console.ui.questions import Questions
from drumline_console.ui.server import new_secret, serve
from tests.texts import missing
from tests.unit.console.ui.shown import Shown
from tests.unit.overview.objects import a_cluster, a_job

SECRET = "a" * 43
QUESTION = "what-if?ask=new&queue=research&nodes=1&gpus=8"


def limits() -> SharedLimits:
    return SharedLimits(Questions(read_policy(None)))


def a_caller(namespace: str = "default") -> Caller:
    credentials = Credentials(server="http://h", token=Token(lambda: None), namespace=namespace)
    return Caller(credentials=credentials)


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


@pytest.mark.parametrize("line", ["OPTIONS *", "CONNECT a:1", "GET http://127.0.0.1"])
async def test_requests_without_a_path_are_none_of_ours(
    browser: Browser, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(browser.root).port)
    writer.write(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.read()).split()[1] == b"404"
    writer.close()
    assert caplog.records == []


async def test_a_button_does_what_it_says(browser: Browser) -> None:
    origin = browser.root.removesuffix("/")
    for action in ("suspend", "resume"):
        url = f"{browser.address}job/team/runs/{action}"
        assert await browser.status("POST", url, Origin=origin, Sec_Fetch_Site="same-origin") == 303
    assert browser.shown.acts == [
        ("change", "team/runs", {"suspend": True}),
        ("change", "team/runs", {"suspend": False}),
    ]


@pytest.mark.parametrize(
    ("action", "fields", "acts", "then"),
    [
        ("delete", {"uid": "uid-runs"}, ("delete", "team/runs", "uid-runs"), ""),
        (
            "priority",
            {"priority": "urgent"},
            ("change", "team/runs", {"priorityClassName": "urgent"}),
            "job/team/runs",
        ),
        (
            "priority",
            {"priority": ""},
            ("change", "team/runs", {"priorityClassName": None}),
            "job/team/runs",
        ),
    ],
)
async def test_a_form_does_what_it_says(
    browser: Browser, action: str, fields: dict[str, str], acts: tuple[object, ...], then: str
) -> None:
    url = f"{browser.address}job/team/runs/{action}"
    async with browser.session.post(url, data=fields, allow_redirects=False) as answer:
        assert answer.status == 303
        assert urljoin(url, answer.headers["Location"]) == browser.address + then
    assert browser.shown.acts == [acts]


async def test_a_copy_is_shown_before_it_is_created(browser: Browser) -> None:
    url = f"{browser.address}job/team/runs/clone"
    fields = {"name": "again", "changes": "nodes=2\n\nuser=ada"}
    async with browser.session.get(url, params=fields) as answer:
        text = await answer.text()
        assert answer.status == 200
    for line in ("  name: again", "  nodes: 2", "  user: ada", "Create again"):
        assert line in text
    assert browser.shown.acts == []
    async with browser.session.post(url, data=fields, allow_redirects=False) as answer:
        assert urljoin(url, answer.headers["Location"]) == f"{browser.address}job/team/again"
    [(_, key, manifest)] = browser.shown.acts
    assert (key, manifest["metadata"]["name"], manifest["spec"]["nodes"]) == (
        "team/runs",
        "again",
        2,
    )


async def test_each_form_is_asked_for_first(browser: Browser) -> None:
    for action, words in (("delete", "Delete team/runs?"), ("priority", "Priority class")):
        status, text = await browser.page(f"job/team/runs/{action}")
        assert (status, words in text) == (200, True)
        assert "live.js" not in text
    assert browser.shown.acts == []


@pytest.mark.parametrize(
    ("action", "fields", "words"),
    [
        ("delete", {}, "open its page again"),
        ("clone", {}, "the copy needs a name"),
        ("clone", {"name": "x", "changes": "nodes"}, "want path=value"),
        ("clone", {"name": "x", "changes": "a=1\n" * 51}, "more than 50 changes"),
    ],
)
async def test_what_a_form_lacks_is_said(
    browser: Browser, action: str, fields: dict[str, str], words: str
) -> None:
    url = f"{browser.address}job/team/runs/{action}"
    async with browser.session.post(url, data=fields) as answer:
        assert (answer.status, words in await answer.text()) == (400, True)
    assert browser.shown.acts == []


async def test_a_form_is_not_longer_than_people_write(browser: Browser) -> None:
    url = f"{browser.address}job/team/runs/clone"
    async with browser.session.post(url, data={"name": "x" * 20_000}) as answer:
        assert answer.status == 413
    assert browser.shown.acts == []


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
    for action in ("suspend", "delete", "priority", "clone"):
        url = f"{browser.address}job/team/runs/{action}"
        assert await browser.status("POST", url, **headers) == 403
    assert browser.shown.acts == []


async def test_nothing_acts_by_being_looked_at(browser: Browser) -> None:
    assert await browser.status("GET", f"{browser.address}job/team/runs/suspend") in {404, 405}
    assert await browser.status("POST", f"{browser.address}job/team/runs/destroy") == 404
    assert browser.shown.acts == []


async def test_what_the_cluster_refuses_is_said(browser: Browser) -> None:
    status, text = await browser.page("job/team/none")
    assert status == 502
    assert "trainingjob &#x27;none&#x27; not found" in text


def test_secrets_are_long_and_differ() -> None:
    assert len({new_secret() for _ in range(9)}) == 9
    assert len(new_secret()) >= 43


async def test_windows_that_ask_together_read_once() -> None:
    reads: list[Any] = []

    async def read(_credentials: Credentials, wanted: Any, *, own: str) -> ClusterObjects:
        reads.append((wanted.nodes, own))
        await asyncio.sleep(0)
        return a_cluster()

    live = LiveCluster(a_caller("team"), limits=limits(), read=read)
    await asyncio.gather(*(live.cluster() for _ in range(5)))
    assert reads == [(True, "team")]


async def test_who_may_not_list_nodes_sees_the_rest() -> None:
    asked: list[bool] = []

    async def read(_credentials: Credentials, wanted: Any, *, own: str) -> ClusterObjects:
        del own
        asked.append(wanted.nodes)
        if wanted.nodes:
            raise NotAnswered("nodes: not allowed to read")
        return a_cluster(a_job("waits"))

    seen = await LiveCluster(a_caller(), limits=limits(), read=read).cluster()
    assert (asked, len(seen.jobs)) == ([True, False], 1)


async def test_every_request_to_the_api_server_counts_among_those_at_a_time() -> None:
    questions = Questions(read_policy(None))
    none_free = FairTurns(at_once=0, at_once_each=0, waiting=0, waiting_each=0)
    live = LiveCluster(a_caller(), limits=SharedLimits(questions, none_free))
    job = NamedJob(namespace="team", name="runs")
    for request in (
        live.cluster(),
        live.job(job),
        live.manifest(job),
        live.change(job, {}),
        live.delete(job, uid="uid"),
        live.clone(job, {}),
    ):
        with pytest.raises(Busy):
            await request


class Asked(Shown):
    """Counts questions; may have no time for them, or not know who asks."""

    def __init__(self, *, busy: bool = False, unknown: bool = False) -> None:
        super().__init__()
        self.questions = 0
        self._busy = busy
        self._unknown = unknown

    async def cluster(self) -> ClusterObjects:
        if self._unknown:
            raise NotAnswered("the API server rejects these credentials")
        return await super().cluster()

    async def what_if(self, change: Change) -> WhatIfAnswer:
        self.questions += 1
        if self._busy:
            raise Busy("Too many questions wait.")
        return await super().what_if(change)


async def question(shown: Asked, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        serve(shown, port=0, secret=SECRET) as address,
        aiohttp.ClientSession() as session,
        session.get(address + QUESTION, headers=named) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("site", "asked"), [("cross-site", 0), ("same-site", 0), ("same-origin", 1), ("none", 1)]
)
async def test_a_question_that_another_site_leads_to_waits_for_its_button(
    site: str, asked: int
) -> None:
    shown = Asked()
    status, text = await question(shown, Sec_Fetch_Site=site)
    assert (status, shown.questions) == (200, asked)
    assert not missing(text, "queue research")
    assert ("press Ask" in text) == (asked == 0)


async def test_who_asks_too_much_is_told_so() -> None:
    status, text = await question(Asked(busy=True))
    assert (status, "Too many questions wait." in text) == (503, True)


async def test_who_is_unknown_waits_for_no_question() -> None:
    shown = Asked(unknown=True)
    status, _ = await question(shown)
    assert (status, shown.questions) == (502, 0)


class Slow(Shown):
    """Goes on when it is let, and remembers being given up."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.given_up, self.done = asyncio.Event(), asyncio.Event()

    async def job(self, job: NamedJob) -> JobInput:
        self.begun.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        return await super().job(job)

    async def change(self, job: NamedJob, spec: dict[str, Any]) -> None:
        self.begun.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        await super().change(job, spec)
        self.done.set()


async def gone(method: str, url: str, shown: Slow) -> None:
    """A browser that sends this and closes its connection."""
    async with aiohttp.ClientSession() as session:
        request = asyncio.create_task(session.request(method, url))
        await shown.begun.wait()
        request.cancel()
        await asyncio.wait([request])


async def test_what_nobody_waits_for_any_more_is_not_read() -> None:
    shown = Slow()
    async with serve(shown, port=0, secret=SECRET) as address:
        await gone("GET", f"{address}job/team/runs", shown)
        try:
            await asyncio.wait_for(shown.given_up.wait(), timeout=60)
        finally:
            shown.goes_on.set()


async def test_a_change_is_finished_though_its_browser_has_gone() -> None:
    shown = Slow()
    async with serve(shown, port=0, secret=SECRET) as address:
        await gone("POST", f"{address}job/team/runs/suspend", shown)
        async with aiohttp.ClientSession() as session, session.get(address) as answer:
            assert answer.status == 200  # by now the server knows that the first one has gone
        shown.goes_on.set()
        finished = {asyncio.create_task(e.wait()) for e in (shown.done, shown.given_up)}
        await asyncio.wait(finished, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for each in finished:
            each.cancel()
    assert shown.acts == [("change", "team/runs", {"suspend": True})]
