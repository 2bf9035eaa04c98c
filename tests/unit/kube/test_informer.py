"""The informer among broken streams. Against a healthy server: see the integration tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from drumline.kube import codec, reads
from drumline.kube.client import KubeClient
from drumline.kube.informer import Informer, InformerTiming, Selection
from drumline.kube.kinds import PODS
from drumline.kube.line_splitter import MAX_LINE_BYTES
from drumline.kube.retry import RetryPolicy
from drumline.kube.views import Key, PodView
from drumline.kube.watch_decoder import Decode, Quarantined
from tests.patience import HANG_SECONDS
from tests.unit.kube.conftest import Serve

_QUICK = InformerTiming(
    silence_seconds=0.2,
    relist_spread_seconds=0.001,
    backoff=RetryPolicy(base_seconds=0.001, cap_seconds=0.001),
)
_PATIENT = replace(_QUICK, silence_seconds=60.0)


def _pod(name: str, version: int, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "a", "name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {"containers": []} | spec,
    }


def _line(change: str, document: Any) -> bytes:
    return json.dumps({"type": change, "object": document}).encode() + b"\n"


def _error(code: int) -> bytes:
    return _line("ERROR", {"kind": "Status", "code": code, "reason": "any", "message": "m"})


def _repeating_last(items: list[Any]) -> Iterator[Any]:
    """Return items in turn, then the last of them again: on a slow machine more are asked for."""
    return itertools.chain(items, itertools.cycle(items[-1:]))


class _Stage:
    """A server that plays lists and watches in turn, then leaves the last watch open."""

    def __init__(self, *, lists: list[list[dict[str, Any]]], watches: list[Any]) -> None:
        self.asked: list[str] = []
        self._lists = _repeating_last(lists)
        self._watches = _repeating_last(watches)
        self.versions: Iterator[int] = iter(range(10, 1000, 10))
        self.closing = asyncio.Event()
        self.watched = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.asked.append("list")
            metadata = {"resourceVersion": str(next(self.versions))}
            return web.json_response({"metadata": metadata, "items": next(self._lists)})
        self.asked.append(f"watch {request.query['resourceVersion']}")
        scene = next(self._watches)
        self.watched.set()
        if isinstance(scene, int):
            return web.json_response({"code": scene, "message": "m"}, status=scene)
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in scene:
            if chunk is None:
                await self.closing.wait()
            else:
                await response.write(chunk)
        return response


@asynccontextmanager
async def _running(
    serve: Serve,
    stage: _Stage,
    *,
    timing: InformerTiming = _QUICK,
    on_quarantine: Callable[[Quarantined], None] = lambda _: None,
    in_part: Decode[PodView] | None = None,
) -> AsyncIterator[Informer[PodView]]:
    async with KubeClient(await serve(stage.handle)) as client:
        informer = Informer(
            client,
            PODS,
            decode=codec.pod,
            timing=timing,
            on_quarantine=on_quarantine,
            in_part=in_part,
        )
        task = asyncio.create_task(informer.run())
        try:
            yield informer
        finally:
            stage.closing.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def _names(informer: Informer[PodView]) -> set[str]:
    return {view.name for view in informer.values()}


async def _reach(informer: Informer[PodView], version: int) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        await informer.wait_version(str(version))


async def test_garbage_is_quarantined_and_the_stream_goes_on(serve: Serve) -> None:
    noted: list[Quarantined] = []
    bad = _pod("bad", 12, overhead={"cpu": "many"})
    stage = _Stage(
        lists=[[]],
        watches=[
            [
                b"\xff\xfe not json\n",
                _line("SURPRISE", _pod("p", 11)),
                _line("ADDED", bad),
                _line("ADDED", _pod("good", 13)),
                None,
            ]
        ],
    )
    async with _running(serve, stage, on_quarantine=noted.append) as informer:
        await _reach(informer, 13)
        assert _names(informer) == {"good"}
        assert [each.key for each in noted] == [None, None, Key("a", "bad")]
        assert informer.quarantined_total == 3


async def test_a_bound_pod_that_cannot_be_read_counts_from_list_and_watch(serve: Serve) -> None:
    listed = _pod("listed", 5, nodeName="n", overhead={"cpu": "many"})
    bound = _pod("bound", 12, nodeName="n", overhead={"cpu": "many"})
    gone = _pod("gone", 14, nodeName="n", overhead={"cpu": "many"})
    stage = _Stage(
        lists=[[listed, _pod("bound", 6), _pod("gone", 7)]],
        watches=[
            [
                _line("MODIFIED", bound),
                _line("DELETED", gone),
                _line("ADDED", _pod("good", 15)),
                None,
            ]
        ],
    )
    async with _running(serve, stage, in_part=codec.pod_in_part) as informer:
        await _reach(informer, 15)
        nodes = {view.name: (view.node_name, view.unread) for view in informer.values()}
        assert nodes == {"listed": ("n", True), "bound": ("n", True), "good": ("", False)}
        assert informer.quarantined_total == 3


async def test_a_document_beyond_the_bound_is_skipped(serve: Serve) -> None:
    noted: list[Quarantined] = []
    giant = _line("ADDED", _pod("giant", 11, nodeName="x" * MAX_LINE_BYTES))
    stage = _Stage(lists=[[]], watches=[[giant, _line("ADDED", _pod("small", 12)), None]])
    async with _running(serve, stage, on_quarantine=noted.append) as informer:
        await _reach(informer, 12)
        assert _names(informer) == {"small"}
        assert len(noted) == 1


async def test_a_pod_as_large_as_etcd_allows_is_seen_whatever_its_text(serve: Serve) -> None:
    """The API server sends `<` as six bytes. A missed pod holds uncounted GPUs."""
    text = b"\\u003c" * 1_500_000
    line = _line("ADDED", _pod("large", 11, containers=[{"name": "c", "args": ["TEXT"]}]))
    stage = _Stage(lists=[[]], watches=[[line.replace(b"TEXT", text), None]])
    async with _running(serve, stage) as informer:
        await _reach(informer, 11)
        assert _names(informer) == {"large"}


async def test_the_last_good_view_stays_until_the_object_is_deleted(serve: Serve) -> None:
    bad = _pod("p", 11, overhead={"cpu": "many"})
    stage = _Stage(
        lists=[[_pod("p", 5)]],
        watches=[
            [_line("MODIFIED", bad), _line("ADDED", _pod("q", 12))],
            [_line("DELETED", bad), _line("ADDED", _pod("r", 14)), None],
        ],
    )
    async with _running(serve, stage) as informer:
        await _reach(informer, 12)
        assert informer.get(Key("a", "p")) is not None
        await _reach(informer, 14)
        assert _names(informer) == {"q", "r"}


async def test_a_listed_object_that_became_unreadable_keeps_its_last_good_view(
    serve: Serve,
) -> None:
    stage = _Stage(
        lists=[[_pod("p", 5)], [_pod("p", 15, overhead={"cpu": "many"})]],
        watches=[[_error(410)], [None]],
    )
    async with _running(serve, stage) as informer:
        await _reach(informer, 20)
        view = informer.get(Key("a", "p"))
        assert view is not None
        assert view.resource_version == "5"


async def test_a_stream_that_ends_is_resumed_from_the_last_bookmark(serve: Serve) -> None:
    bookmark = _line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "17"}})
    stage = _Stage(
        lists=[[]],
        watches=[[bookmark], [_line("ADDED", _pod("p", 18)), None]],
    )
    async with _running(serve, stage) as informer:
        await _reach(informer, 18)
    assert stage.asked == ["list", "watch 10", "watch 17"]


async def test_silence_breaks_the_stream(serve: Serve) -> None:
    stage = _Stage(lists=[[]], watches=[[None], [_line("ADDED", _pod("p", 11)), None]])
    async with _running(serve, stage) as informer:
        await _reach(informer, 11)
    assert stage.asked == ["list", "watch 10", "watch 10"]


@pytest.mark.parametrize(
    "scene", [[_error(410)], 410, 400], ids=["410 in the stream", "410", "400"]
)
async def test_a_version_that_is_gone_makes_it_list_again(serve: Serve, scene: Any) -> None:
    stage = _Stage(lists=[[_pod("p", 5)], []], watches=[scene, [None]])
    async with _running(serve, stage) as informer:
        await _reach(informer, 20)
        assert _names(informer) == set()
    assert stage.asked[:3] == ["list", "watch 10", "list"]


@pytest.mark.parametrize(
    "scene",
    [[_error(500)], [_error(429)], 401, 403, 429, 500, 503, 504],
    ids=["500 in the stream", "429 in the stream", "401", "403", "429", "500", "503", "504"],
)
async def test_a_refused_watch_is_resumed_without_a_list(serve: Serve, scene: Any) -> None:
    stage = _Stage(
        lists=[[_pod("p", 5)]], watches=[scene, scene, [_line("ADDED", _pod("q", 11)), None]]
    )
    async with _running(serve, stage) as informer:
        await _reach(informer, 11)
        assert _names(informer) == {"p", "q"}
        assert informer.relists_total == 1
    assert stage.asked == ["list", "watch 10", "watch 10", "watch 10"]


async def test_a_server_that_waits_for_a_version_of_the_future_is_listed(serve: Serve) -> None:
    rewinds: list[str] = []
    stage = _Stage(lists=[[_pod("p", 5)], [_pod("p", 3)]], watches=[[None], [None], [None]])
    stage.versions = _repeating_last([90, 40])
    async with _running(serve, stage) as informer:
        await _reach(informer, 90)
        informer.subscribe_to_rewinds(lambda: rewinds.append(informer.resource_version))
        async with asyncio.timeout(HANG_SECONDS):
            await informer.wait_for(lambda: informer.resource_version == "40")
        assert [view.resource_version for view in informer.values()] == ["3"]
    assert stage.asked[:4] == ["list", "watch 90", "watch 90", "list"]
    assert rewinds == ["90"]


async def test_freshness_counts_from_the_last_word_of_the_server(serve: Serve) -> None:
    stage = _Stage(lists=[[]], watches=[[None]])
    async with KubeClient(await serve(stage.handle)) as client:
        informer = Informer(client, PODS, decode=codec.pod, timing=_QUICK, clock=lambda: 100.0)
        assert informer.freshness_seconds(100.0) == math.inf
        assert not informer.has_synced
        task = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert informer.freshness_seconds(107.0) == 7.0
        stage.closing.set()
        task.cancel()


def _is_refused(request: web.Request) -> web.Response:
    return web.json_response({"code": 403, "message": f"no {request.path}"}, status=403)


@asynccontextmanager
async def _of_a_namespace(
    serve: Serve, stage: _Stage, refused: asyncio.Event, clock: Callable[[], float]
) -> AsyncIterator[tuple[Informer[PodView], list[str]]]:
    """An informer that may take a namespace for empty while it is refused, and what it said."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return _is_refused(request) if refused.is_set() else await stage.handle(request)

    said: list[str] = []
    async with KubeClient(await serve(handle)) as client:
        informer = Informer(
            client,
            PODS,
            decode=codec.pod,
            selection=Selection(namespace="a"),
            timing=_QUICK,
            on_forbidden=lambda error: said.append(error.message),
            clock=clock,
        )
        task = asyncio.create_task(informer.run())
        try:
            yield informer, said
        finally:
            stage.closing.set()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("known", [True, False], ids=["seen before", "at the start"])
async def test_a_namespace_that_may_not_be_read_is_empty_until_it_may_be(
    serve: Serve, known: bool
) -> None:
    now, gone, refused = 100.0, list[str](), asyncio.Event()
    stage = _Stage(lists=[[_pod("p", 5)]] * 2, watches=[[], *[[None]] * 3])
    if not known:
        refused.set()
    async with (
        asyncio.timeout(HANG_SECONDS),
        _of_a_namespace(serve, stage, refused, lambda: now) as (informer, said),
    ):
        if known:
            await informer.wait_synced()
            refused.set()
        informer.subscribe(lambda event: gone.append(f"{event.change} {event.view.name}"))
        now += 1000.0
        await informer.wait_for(lambda: informer.freshness_seconds(now) == 0)
        assert not informer.is_forbidden, "it was refused for a moment"
        assert _names(informer) == ({"p"} if known else set())
        now += 30.0
        await informer.wait_for(lambda: informer.is_forbidden)
        await informer.wait_synced()
        await informer.catch_up()
        assert (_names(informer), said) == (set(), ["no /api/v1/namespaces/a/pods"])
        now += 1000.0
        await informer.wait_for(lambda: informer.silence(now) is None)
        refused.clear()
        await informer.wait_for(lambda: not informer.is_forbidden)
        assert _names(informer) == {"p"}
    assert gone == [*(["DELETED p"] if known else []), "ADDED p"]


async def test_what_is_there_again_is_listed_to_catch_up(serve: Serve) -> None:
    """The version from before says nothing of what it was emptied of."""
    stage = _Stage(lists=[[_pod("p", 5)]] * 3, watches=[[None]] * 3)
    async with KubeClient(await serve(stage.handle)) as client:
        informer = Informer(client, PODS, decode=codec.pod, timing=_QUICK)
        informer.is_forbidden = True
        async with asyncio.timeout(HANG_SECONDS):
            await informer.catch_up()
        assert _names(informer) == {"p"}
    assert stage.asked == ["list"]


async def test_an_ended_subscription_hears_nothing(serve: Serve) -> None:
    stage = _Stage(lists=[[_pod("p", 5)]], watches=[[_line("ADDED", _pod("q", 11)), None]])
    heard: list[str] = []
    async with _running(serve, stage) as informer:
        informer.subscribe(lambda event: heard.append(event.view.name))
        end = informer.subscribe(lambda event: heard.append(f"late {event.view.name}"))
        end()
        await _reach(informer, 11)
    assert heard == ["p", "q"]


DEEP = b"[" * 5000 + b"]" * 5000


async def test_an_object_nested_too_deep_ends_no_watch(serve: Serve) -> None:
    noted: list[Quarantined] = []
    deep = _line("ADDED", _pod("deep", 11, other="@")).replace(b'"@"', DEEP)
    stage = _Stage(lists=[[]], watches=[[deep, _line("ADDED", _pod("plain", 12)), None]])
    async with _running(serve, stage, on_quarantine=noted.append) as informer:
        await _reach(informer, 12)
        assert (_names(informer), noted) == ({"deep", "plain"}, [])


def test_an_object_nested_too_deep_ends_no_list() -> None:
    items = json.dumps([_pod("deep", 11, other="@"), _pod("plain", 12)]).encode()
    answer = b'{"metadata":{"continue":"more"},"items":%b}' % items.replace(b'"@"', DEEP)
    listed = reads._parse(answer)
    assert listed.metadata.next_token
    assert [codec.pod(item).name for item in listed.items] == ["deep", "plain"]


async def test_a_cache_that_has_seen_all_catches_up_without_a_watch(serve: Serve) -> None:
    stage = _Stage(lists=[[_pod("p", 5)], [_pod("p", 5)]], watches=[[None]])
    stage.versions = _repeating_last([10])
    async with _running(serve, stage, timing=_PATIENT) as informer:
        await _reach(informer, 10)
        await informer.catch_up()
    assert stage.asked == ["list", "watch 10", "list"]


async def test_a_bookmark_says_that_a_cache_has_caught_up(serve: Serve) -> None:
    bookmark = _line("BOOKMARK", {"metadata": {"resourceVersion": "21"}})
    missed = _line("ADDED", _pod("missed", 15))
    stage = _Stage(lists=[[], []], watches=[[None], [missed, bookmark, None]])
    async with _running(serve, stage, timing=_PATIENT) as informer:
        await _reach(informer, 10)
        async with asyncio.timeout(HANG_SECONDS):
            await stage.watched.wait()
            await informer.catch_up()
        assert _names(informer) == {"missed"}
    assert stage.asked == ["list", "watch 10", "list", "watch 10"]


@pytest.mark.parametrize("scenes", [[410], [[], []]], ids=["too old", "no bookmark"])
async def test_where_a_watch_does_not_help_all_is_listed_again(
    serve: Serve, scenes: list[Any]
) -> None:
    stage = _Stage(lists=[[], [], [_pod("missed", 15)]], watches=[[None], *scenes])
    async with _running(serve, stage, timing=_PATIENT) as informer:
        await _reach(informer, 10)
        async with asyncio.timeout(HANG_SECONDS):
            await stage.watched.wait()
            await informer.catch_up()
        assert _names(informer) == {"missed"}
    assert informer.relists_total == 2
