"""One browser for all tests of the page."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from drumline_console.ui.server import serve
from tests.browser import chromium
from tests.browser.devtools import Page, connected, new_page
from tests.browser.scene import events, objects
from tests.unit.console.ui.shown import Shown
from tools.cluster.model import ClusterError


def pytest_configure() -> None:
    """SIGTERM interrupts as Ctrl-C does: the browser ends with its fixture."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def browser() -> Iterator[str]:
    """The address of its DevTools; installed where it is missing and can be."""
    if reason := chromium.absent():
        pytest.skip(reason)
    try:
        chromium.ensure()
    except ClusterError as error:  # no mirror within reach
        pytest.skip(str(error))
    with chromium.running() as address:
        yield address


@pytest.fixture
async def page(browser: str) -> AsyncIterator[Page]:
    """An empty page."""
    async with connected(browser) as connection, new_page(connection) as page:
        await page.look()
        yield page


@pytest.fixture
def shown() -> Shown:
    """The cluster of `scene`."""
    return Shown(*objects(), events=events())


@pytest.fixture
async def address(shown: Shown) -> AsyncIterator[str]:
    """Of the page of this cluster."""
    async with serve(shown, port=0, secret="s" * 43) as address:
        yield address
