"""Foreign pods are evicted before anything else happens for a preemption, or nothing does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from drumline.controller.scheduler.foreign_evictions import (
    MAX_STAYS_SECONDS,
    STAYS_SECONDS,
    ForeignEvictions,
)
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.scheduling.decisions import Preemption, Victim, VictimReason

NOW = 1000.0


@dataclass
class Site:
    """An API server that answers evictions, and what became of them."""

    evictions: ForeignEvictions
    answers: dict[str, int] = field(default_factory=dict[str, int])
    """By pod: the code where it is not 201."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    stay: dict[str, float] = field(default_factory=dict[str, float])
    tainted: set[str] = field(default_factory=lambda: {"n"})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    app = web.Application()
    runner = web.AppRunner(app)

    async def evict(request: web.Request) -> web.Response:
        made.asked.append(json.loads(await request.read()))
        code = made.answers.get(request.match_info["name"], 201)
        return web.json_response({"message": "no", "code": code}, status=code)

    app.router.add_post("/api/v1/namespaces/team/pods/{name}/eviction", evict)
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        credentials = Credentials(server=server, token=Token(lambda: None))
        client = await stack.enter_async_context(KubeClient(credentials))
        stay: dict[str, float] = {}
        tainted = {"n"}
        evictions = ForeignEvictions(
            client=client,
            pools={"shared"},
            is_tainted=tainted.__contains__,
            stays=stay.__setitem__,
        )
        made = Site(evictions, stay=stay, tainted=tainted)
        yield made


def preemption(*names: str, pool: str = "shared") -> Preemption:
    victims = [
        Victim(
            key=f"team/pods/{name}",
            uid=f"pods/uid-{name}/pods-0",
            gpus=1,
            gpu_seconds_lost=0.0,
            why=VictimReason.BORROWED,
        )
        for name in names
    ]
    job = Victim(
        key="team/job", uid="1-2-3", gpus=1, gpu_seconds_lost=0.0, why=VictimReason.BORROWED
    )
    return Preemption(key="t/p", uid="p", pool=pool, assignment=("n",), victims=(job, *victims))


async def test_the_very_pods_are_evicted_and_jobs_are_left_to_others(site: Site) -> None:
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)
    (eviction,) = site.asked
    assert eviction["kind"] == "Eviction"
    assert eviction["metadata"] == {"name": "chat-1", "namespace": "team"}
    assert eviction["deleteOptions"] == {"preconditions": {"uid": "uid-chat-1"}}
    assert site.stay == {}


@pytest.mark.parametrize("code", [429, 403])
async def test_a_pod_that_stays_is_asked_once_and_is_no_victim_for_a_while(
    site: Site, code: int
) -> None:
    site.answers["chat-1"] = code
    assert not await site.evictions.evict(preemption("chat-1", "chat-2"), now=NOW)
    assert len(site.asked) == 2
    assert site.stay == {"uid-chat-1": NOW + STAYS_SECONDS}
    for _ in range(9):
        assert not await site.evictions.evict(preemption("chat-1"), now=NOW)
    assert site.stay == {"uid-chat-1": NOW + MAX_STAYS_SECONDS}
    del site.answers["chat-1"]
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)
    site.answers["chat-1"] = code
    assert not await site.evictions.evict(preemption("chat-1"), now=NOW)
    assert site.stay == {"uid-chat-1": NOW + STAYS_SECONDS}


@pytest.mark.parametrize("code", [404, 409])
async def test_a_pod_that_is_gone_needs_no_eviction(site: Site, code: int) -> None:
    site.answers["chat-1"] = code
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)


async def test_pods_of_pools_that_are_not_guarded_stay(site: Site) -> None:
    assert not await site.evictions.evict(preemption("chat-1", pool="open"), now=NOW)
    assert (site.asked, list(site.stay)) == ([], ["uid-chat-1"])


async def test_pods_stay_while_kube_scheduler_may_give_their_places_away(site: Site) -> None:
    """A guarded node that could not be tainted is used as one that nobody guards."""
    site.tainted.clear()
    assert not await site.evictions.evict(preemption("chat-1"), now=NOW)
    assert (site.asked, list(site.stay)) == ([], ["uid-chat-1"])
    site.tainted.add("n")
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)
