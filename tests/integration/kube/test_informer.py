"""The informer's cache equals the API server, through everything that happens between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drumline.kube import codec, writes
from drumline.kube.client import KubeClient
from drumline.kube.informer import Informer, InformerTiming, Selection
from drumline.kube.kinds import CONFIG_MAPS, PODS, PRIORITY_CLASSES
from drumline.kube.retry import RetryPolicy
from drumline.kube.store import Change, Event
from drumline.kube.views import Key, ObjectView
from tests.integration.kube.conftest import Gate, compact, restart_api_server
from tests.integration.kube.test_writes import pod
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster

_TIMING = InformerTiming(
    relist_spread_seconds=0.01, backoff=RetryPolicy(base_seconds=0.01, cap_seconds=0.1)
)


@asynccontextmanager
async def _running(
    client: KubeClient, namespace: str, **options: Any
) -> AsyncIterator[Informer[ObjectView]]:
    selection = Selection(namespace=namespace, label_selector="mine")
    informer = Informer(
        client,
        CONFIG_MAPS,
        decode=codec.custom_object,
        selection=selection,
        timing=_TIMING,
        **options,
    )
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await informer.wait_synced()
            yield informer
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def _note(informer: Informer[ObjectView]) -> list[tuple[Change, str]]:
    events: list[tuple[Change, str]] = []

    def note(event: Event[ObjectView]) -> None:
        events.append((event.change, event.view.name))

    informer.subscribe(note)
    return events


def _body(name: str, *, mine: bool = True, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"mine": "yes"} if mine else {}}, "data": data}


async def _create(client: KubeClient, namespace: str, name: str, **more: Any) -> writes.Written:
    body = _body(name, **more)
    return await writes.create(client, CONFIG_MAPS, namespace=namespace, body=body)


async def _delete(client: KubeClient, namespace: str, name: str) -> None:
    await writes.delete(client, CONFIG_MAPS, namespace=namespace, name=name, uid=None)


def _names(informer: Informer[ObjectView]) -> Callable[[], set[str]]:
    return lambda: {view.name for view in informer.values()}


async def test_it_sees_adds_updates_and_deletes_of_what_it_selects(
    client: KubeClient, namespace: str
) -> None:
    await _create(client, namespace, "before")
    async with _running(client, namespace) as informer:
        events = _note(informer)
        await _create(client, namespace, "foreign", mine=False)
        await _create(client, namespace, "a")
        updated = await writes.merge_patch(
            client, CONFIG_MAPS, namespace=namespace, name="a", body={"data": {"k": "v"}}
        )
        await informer.wait_version(updated.resource_version)
        view = informer.get(Key(namespace, "a"))
        assert view is not None
        assert (view.uid, view.resource_version) == updated
        await _delete(client, namespace, "before")
        await informer.wait_for(lambda: _names(informer)() == {"a"})
    assert events == [
        (Change.ADDED, "a"),
        (Change.MODIFIED, "a"),
        (Change.DELETED, "before"),
    ]


async def test_it_catches_up_with_all_that_was_written_before(
    client: KubeClient, namespace: str
) -> None:
    """Even where its own watch is far behind: here it has none."""
    await _create(client, namespace, "deleted")
    selection = Selection(namespace=namespace)
    informer = Informer(client, CONFIG_MAPS, decode=codec.custom_object, selection=selection)
    task = asyncio.create_task(informer.run())
    await informer.wait_synced()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await _delete(client, namespace, "deleted")
    await _create(client, namespace, "created")
    async with asyncio.timeout(HANG_SECONDS):
        await informer.catch_up()
    assert {"created"} == _names(informer)() - {"kube-root-ca.crt"}
    assert informer.relists_total == 1


async def test_it_catches_up_where_only_other_kinds_change(
    client: KubeClient, namespace: str
) -> None:
    informer = Informer(client, PRIORITY_CLASSES, decode=codec.priority_class)
    task = asyncio.create_task(informer.run())
    await informer.wait_synced()
    foreign = await _create(client, namespace, "foreign")
    async with asyncio.timeout(HANG_SECONDS):
        await informer.catch_up()
    assert informer.has_reached(foreign.resource_version)
    assert informer.relists_total == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_list_of_many_pages_is_taken_in_whole(client: KubeClient, namespace: str) -> None:
    bodies = [_body(f"c-{i}") for i in range(25)]
    await writes.create_many(client, CONFIG_MAPS, namespace=namespace, bodies=bodies)
    async with _running(client, namespace, page_limit=10) as informer:
        assert _names(informer)() == {f"c-{i}" for i in range(25)}


async def test_a_cut_stream_is_resumed_without_a_new_list(
    client: KubeClient, gated_client: KubeClient, gate: Gate, namespace: str
) -> None:
    await _create(client, namespace, "a")
    async with _running(gated_client, namespace) as informer:
        events = _note(informer)
        await gate.shut()
        await _delete(client, namespace, "a")
        await _create(client, namespace, "b")
        await gate.open()
        await informer.wait_for(lambda: _names(informer)() == {"b"})
        assert events == [(Change.DELETED, "a"), (Change.ADDED, "b")]
        assert informer.relists_total == 1


@pytest.mark.extended(keep=1, of="restarts of the API server")
async def test_it_goes_on_after_a_restart_of_the_api_server(
    control_plane: Cluster, client: KubeClient, namespace: str
) -> None:
    await _create(client, namespace, "a")
    async with _running(client, namespace) as informer:
        events = _note(informer)
        await asyncio.to_thread(restart_api_server, control_plane)
        await _create(client, namespace, "b")
        await informer.wait_for(lambda: _names(informer)() == {"a", "b"})
    assert events == [(Change.ADDED, "b")]


@pytest.mark.extended(keep=1, of="restarts of the API server")
async def test_what_was_deleted_unseen_and_compacted_away_is_reported_as_deleted(
    control_plane: Cluster,
    client: KubeClient,
    gated_client: KubeClient,
    gate: Gate,
    namespace: str,
) -> None:
    await _create(client, namespace, "ghost")
    await _create(client, namespace, "stays")
    async with _running(gated_client, namespace) as informer:
        events = _note(informer)
        await gate.shut()
        await _delete(client, namespace, "ghost")
        last = await _create(client, namespace, "new")
        await compact(control_plane, revision=last.resource_version)
        # Its watch cache still knows what etcd forgot.
        await asyncio.to_thread(restart_api_server, control_plane)
        await gate.open()
        await informer.wait_for(lambda: _names(informer)() == {"stays", "new"})
        assert events == [(Change.DELETED, "ghost"), (Change.ADDED, "new")]
        assert informer.relists_total == 2


async def test_the_largest_object_the_server_stores_is_read(
    client: KubeClient, namespace: str
) -> None:
    async with _running(client, namespace) as informer:
        big = await _create(client, namespace, "big", filling="x" * 1_000_000)
        await informer.wait_version(big.resource_version)
        assert _names(informer)() == {"big"}
        assert informer.quarantined_total == 0


async def test_pods_are_seen_as_views(client: KubeClient, namespace: str) -> None:
    informer = Informer(
        client, PODS, decode=codec.pod, selection=Selection(namespace=namespace), timing=_TIMING
    )
    async with asyncio.timeout(HANG_SECONDS), asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        await informer.wait_synced()
        labels = {"drumline.dev/index": "3", "app": "x"}
        written = await writes.create(
            client, PODS, namespace=namespace, body=pod("p", labels=labels)
        )
        await informer.wait_version(written.resource_version)
        (view,) = informer.values()
        assert (view.name, view.uid, view.labels) == (
            "p",
            written.uid,
            {"drumline.dev/index": "3"},
        )
        task.cancel()
