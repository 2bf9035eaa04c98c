"""What only a browser can say of the page: nothing foreign runs, keys reach all, all fits."""

from __future__ import annotations

import pytest

from drumline_console.ui.server import serve
from tests.browser.devtools import Page
from tests.browser.scene import crowded
from tests.unit.cli.manifests import an_event
from tests.unit.console.ui.shown import Shown
from tests.unit.console.ui.test_pages import HOSTILE, hostile_cluster, hostile_status

pytestmark = pytest.mark.extended(keep=6)

PATHS = ("", "job/team/llama-70b", "job/team/deepseek-sft", "job/team/vit-b")
FORMS = (
    *(f"job/team/llama-70b/{action}" for action in ("delete", "priority", "clone")),
    "what-if?ask=queue&queue=research&pool=h100&gpus=64",
)
FOCUSED = """
(() => {
  const at = document.activeElement;
  if (at === document.body) return null;
  const style = getComputedStyle(at), box = at.getBoundingClientRect();
  return {
    what: at.getAttribute("href") ?? at.textContent.trim() ?? at.tagName,
    tag: at.tagName,
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
    seen: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
    order: [...document.querySelectorAll("*")].indexOf(at),
  };
})()
"""
REACHABLE = """
[...document.querySelectorAll("a, button, input, select, textarea, [tabindex='0']")]
  .filter((each) => each.type !== "hidden").length
"""
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
REPLACED = """
new Promise((done) => {
  const look = () => old.isConnected ? setTimeout(look, 20) : done();
  look();
})
"""
TOUCHED = """
for (const each of document.querySelectorAll("*"))
  for (const kind of ["focus", "mouseover", "load", "error"]) each.dispatchEvent(new Event(kind));
"""
COLOURS = """
(() => {
  const parts = (colour) => colour.match(/\\d+/g).slice(0, 3).map(Number);
  const light = (colour) => parts(colour).reduce((sum, part) => sum + part, 0) / 765;
  const style = getComputedStyle(document.body);
  return [light(style.backgroundColor), light(style.color)];
})()
"""


async def enter(page: Page, what: str) -> None:
    """Go to a link or button by Tab alone, and press it."""
    for _ in range(await page.value(REACHABLE)):
        await page.press("Tab")
        if (await page.value(FOCUSED) or {}).get("what") == what:
            break
    else:
        raise AssertionError(f"no key leads to {what}")
    seen = page.loads
    await page.press("Enter")
    await page.next_load(seen)


@pytest.mark.parametrize("path", PATHS + FORMS)
async def test_the_browser_has_nothing_to_complain_about(
    page: Page, address: str, path: str
) -> None:
    await page.open(address + path)
    assert await page.value("document.getElementById('live') !== null")
    assert await page.value("document.styleSheets.length") == 2
    assert page.problems == []


async def test_a_policy_that_is_broken_would_be_noticed(page: Page, address: str) -> None:
    await page.open(address)
    await page.value(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'document.title = 1'}))"
    )
    await page.value("new Promise((done) => setTimeout(done))")
    assert "Content Security Policy" in " ".join(page.problems)
    assert await page.value("document.title") == "Drumline"


@pytest.mark.parametrize("path", [*PATHS[:2], *FORMS[-2:]])
async def test_keys_reach_everything_in_order_and_show_where_they_are(
    page: Page, address: str, path: str
) -> None:
    await page.open(address + path)
    orders: list[int] = []
    for _ in range(await page.value(REACHABLE)):
        await page.press("Tab")
        focused = await page.value(FOCUSED)
        assert focused is not None, f"lost after {orders}"
        assert focused["outlined"], focused
        assert focused["seen"], focused
        orders.append(focused["order"])
    assert orders == sorted(set(orders))


async def test_enter_opens_a_job_and_presses_its_button(
    page: Page, address: str, shown: Shown
) -> None:
    await page.open(address)
    await enter(page, "job/team/llama-70b")
    assert await page.value("document.title") == "team/llama-70b"
    await enter(page, "Suspend: save, and release its GPUs")
    assert shown.acts == [("change", "team/llama-70b", {"suspend": True})]
    assert await page.value("document.title") == "team/llama-70b"
    assert page.problems == []


async def test_without_scripts_a_job_is_deleted_once_that_was_confirmed(
    page: Page, address: str, shown: Shown
) -> None:
    await page.command("Emulation.setScriptExecutionDisabled", value=True)
    await page.open(f"{address}job/team/llama-70b")
    await enter(page, "llama-70b/delete")
    assert await page.value("document.title") == "Delete team/llama-70b"
    assert shown.acts == []
    await enter(page, "Delete llama-70b")
    assert shown.acts == [("delete", "team/llama-70b", "uid-llama-70b")]
    assert await page.value("location.href") == address


@pytest.mark.parametrize("path", PATHS + FORMS)
async def test_a_phone_scrolls_in_one_direction(page: Page, address: str, path: str) -> None:
    for width in (360, 1280):
        await page.look(width=width, height=740, phone=width < 600)
        await page.open(address + path)
        assert await page.value(OVERFLOW) <= 0


async def test_the_answer_follows_the_slider(page: Page, address: str) -> None:
    await page.open(f"{address}what-if?ask=queue&queue=research&pool=h100&gpus=31")
    assert "If queue research had 31 GPUs more" in await page.value("answer.textContent")
    await page.value("globalThis.old = document.getElementById('answer'), 0")
    await page.value("document.querySelector('input[type=range]').focus()")
    await page.press("ArrowRight")
    await page.value(REPLACED)
    text = await page.value("document.getElementById('answer').textContent")
    assert "If queue research had 32 GPUs more" in text
    assert "team/deepseek-sft" in text
    assert await page.value("document.querySelector('output').value") == "32"
    assert (await page.value("location.search")).endswith("gpus=32")
    assert page.problems == []


async def test_dark_is_dark_and_light_is_light(page: Page, address: str) -> None:
    await page.open(address)
    ground, ink = await page.value(COLOURS)
    assert (ground > 0.9, ink < 0.3) == (True, True)
    await page.look(dark=True)
    ground, ink = await page.value(COLOURS)
    assert (ground < 0.2, ink > 0.7) == (True, True)


async def test_the_content_is_read_again_and_the_focus_stays(page: Page, address: str) -> None:
    await page.open(address)
    await page.value("document.querySelector('a.tile').focus()")
    before = await page.value("document.activeElement.getAttribute('href')")
    await page.value("globalThis.old = document.getElementById('live'), 0")
    await page.value("document.dispatchEvent(new Event('visibilitychange'))")
    await page.value(REPLACED)
    assert await page.value("document.activeElement.getAttribute('href')") == before
    assert page.problems == []


async def test_nothing_that_others_wrote_runs_or_leads_away(page: Page) -> None:
    """All strings at once: a page for each is 30 times the same document."""
    objects = [each for text in HOSTILE for each in hostile_cluster(text)]
    jobs: dict[str, object] = {}
    for number, text in enumerate(HOSTILE):
        jobs[f"runs-{number}"] = hostile_status(f"runs-{number}", text)
    about = [an_event(note=text, reason=text) for text in HOSTILE]
    for number, event in enumerate(about):
        event["regarding"] |= {"name": f"runs-{number}", "uid": ""}
    shown = Shown(*objects, *jobs.values(), events=tuple(about))  # pyright: ignore[reportArgumentType] - as above
    async with serve(shown, port=0, secret="s" * 43) as address:
        for path in ("", *(f"job/team/{name}" for name in jobs)):
            await page.open(address + path)
            assert await page.value("document.getElementById('live') !== null"), path
            await page.value(TOUCHED)
            assert page.problems == [], path
            assert await page.value("document.scripts.length") <= 1
            assert await page.value("location.href") == address + path


@pytest.mark.parametrize("phone", [False, True])
async def test_two_hundred_jobs_fit_on_two_screens(page: Page, phone: bool) -> None:
    async with serve(Shown(*crowded()), port=0, secret="s" * 43) as address:
        await page.look(width=390 if phone else 1280, height=900, phone=phone)
        await page.open(address)
        assert await page.value("document.documentElement.scrollHeight") <= 2 * 900
        assert await page.value(OVERFLOW) <= 0
