"""Lists page by page, where a real server's answers would come too fast to be told apart."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest
from aiohttp import web

from drumline.kube import reads
from drumline.kube.client import KubeClient
from drumline.kube.kinds import PODS
from tests.patience import HANG_SECONDS
from tests.unit.kube.conftest import Serve

PAGES = {
    "": b'{"metadata":{"resourceVersion":"7","continue":"b"},"items":[1]}',
    "b": b'{"metadata":{"resourceVersion":"7","continue":"c"},"items":[2]}',
    "c": b'{"metadata":{"resourceVersion":"7"},"items":[3]}',
}


async def test_the_next_page_is_asked_for_while_a_page_is_read(serve: Serve) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def answer(request: web.Request) -> web.Response:
        token = request.query.get("continue", "")
        asked.put_nowait(token)
        return web.Response(body=PAGES[token])

    items: list[bytes] = []
    async with (
        asyncio.timeout(HANG_SECONDS),
        KubeClient(await serve(answer)) as client,
        aclosing(reads.list_pages(client, PODS)) as pages,
    ):
        async for page in pages:
            items += page.items
            expected = (
                ["", "b"] if page.items == (b"1",) else ["c"] if page.items == (b"2",) else []
            )
            assert [await asked.get() for _ in expected] == expected
    assert items == [b"1", b"2", b"3"]
    assert asked.empty()


async def test_a_caller_that_has_seen_enough_leaves_no_request_behind(serve: Serve) -> None:
    second_asked = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if "continue" in request.query:
            second_asked.set()
            await asyncio.Event().wait()
        return web.Response(body=PAGES[""])

    async with asyncio.timeout(HANG_SECONDS), KubeClient(await serve(answer)) as client:
        async with aclosing(reads.list_pages(client, PODS)) as pages:
            assert (await anext(pages)).items == (b"1",)
            await second_asked.wait()
        mine = asyncio.current_task()
        assert [task for task in asyncio.all_tasks() if "send" in repr(task) and task != mine] == []


async def test_pages_of_large_objects_have_fewer_of_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has small objects, then 20 of a page each, a larger one, and small ones again."""
    monkeypatch.setattr(reads, "MOST_PAGE_BYTES", 1000)
    objects = [*["s"] * 30, *["l" * 900] * 20, "x" * 3000, *["s"] * 30]
    limits: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        first, most = int(request.query.get("continue", 0)), int(request.query["limit"])
        limits.append(most)
        after = first + most
        metadata = {"resourceVersion": "7"}
        if after < len(objects):
            metadata["continue"] = str(after)
        return web.json_response({"metadata": metadata, "items": objects[first:after]})

    async with asyncio.timeout(HANG_SECONDS), KubeClient(await serve(answer)) as client:
        pages = [page.items async for page in reads.list_pages(client, PODS, limit=16)]
    assert [json.loads(item) for page in pages for item in page] == objects
    assert all(len(page) == 1 or sum(map(len, page)) <= 1000 for page in pages)
    assert limits[-1] > 4  # the number of objects per page grows again
