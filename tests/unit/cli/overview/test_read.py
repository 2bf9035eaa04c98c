"""Reading a cluster for a view: one refusal ends all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from drumline.kube.credentials import Credentials, Token
from drumline.telemetry.listener import listening
from drumline_cli.errors import NotAnswered, NotLoggedIn
from drumline_cli.overview import read
from tests.patience import HANG_SECONDS


async def test_a_refusal_ends_the_other_requests_too() -> None:
    """Each would hold what was read, and the caller's token, until it gives up."""
    waiting_requests, all_asked = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal waiting_requests
        if request.path.endswith("/trainingjobs"):
            await all_asked.wait()
            raise web.HTTPUnauthorized
        waiting_requests += 1
        if waiting_requests == len(("queues", "priorities", "pools", "nodes", "slices")):
            all_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    cluster = web.Application()
    cluster.router.add_get("/{path:.*}", answer)
    async with listening(cluster, host="127.0.0.1", port=0) as port:
        credentials = Credentials(
            server=f"http://127.0.0.1:{port}",
            token=Token(lambda: "token-of-mine"),
            ca_path=Path("/ca"),
            namespace="team",
        )
        wanted = read.WantedKinds(namespace=None, queues=True, nodes=True)
        async with asyncio.timeout(HANG_SECONDS):
            with pytest.raises(NotLoggedIn):
                await read.from_cluster(credentials, wanted, own="team")
        left = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert not {"_optional", "_required", "_slices"} & set(left)


@pytest.mark.parametrize("is_forbidden", [False, True])
async def test_an_object_that_jobs_name_is_gone_only_if_its_list_was_read(
    *, is_forbidden: bool
) -> None:
    selectors: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        kind = request.path.rpartition("/")[2]
        if kind == "pods":
            selectors.append(request.query.get("labelSelector", ""))
        if is_forbidden and kind in ("trainingqueues", "gpupools"):
            return web.json_response({"message": "no"}, status=403)
        metadata = {"name": "a", "namespace": "team"}
        items: dict[str, list[object]] = {
            "gpupools": [
                {"metadata": metadata, "spec": {"nodeSelector": {}}, "status": {"usedGpus": 1}}
            ],
            "nodes": [{"metadata": metadata}],
        }
        return web.json_response({"metadata": {}, "items": items.get(kind, [])})

    cluster = web.Application()
    cluster.router.add_get("/{path:.*}", answer)
    async with listening(cluster, host="127.0.0.1", port=0) as port:
        credentials = Credentials(
            server=f"http://127.0.0.1:{port}",
            token=Token(lambda: "token-of-mine"),
            ca_path=Path("/ca"),
            namespace="team",
        )
        wanted = read.WantedKinds(namespace=None, queues=True, places=True, pods=True)
        seen = await read.from_cluster(credentials, wanted, own="team")
    said = "is not readable by you" if is_forbidden else "does not exist (deleted?)"
    assert [seen.absence(kind) for kind in ("TrainingQueue", "GpuPool")] == [said] * 2
    # `why` names the holders of GPUs that no job and no labelled pod holds.
    assert ("!drumline.dev/queue,!drumline.dev/job" in selectors) == (not is_forbidden)


async def test_a_tenant_without_rights_in_the_own_namespace_is_told_to_set_it() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"message": "no"}, status=403)

    cluster = web.Application()
    cluster.router.add_get("/{path:.*}", answer)
    async with listening(cluster, host="127.0.0.1", port=0) as port:
        credentials = Credentials(
            server=f"http://127.0.0.1:{port}",
            token=Token(lambda: "token-of-mine"),
            ca_path=Path("/ca"),
            namespace="default",
        )
        wanted = read.WantedKinds(namespace=None, queues=True)
        with pytest.raises(NotAnswered, match=r"trainingjobs of default.*kubeconfig's context"):
            await read.from_cluster(credentials, wanted, own="default")
