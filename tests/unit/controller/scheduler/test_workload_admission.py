"""What waits is resumed as the cycle saw it or not at all; what cannot be is left for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.admission import RETRY_SECONDS, WorkloadAdmission
from drumline.controller.workloads.suspension import WorkloadSuspension
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.events import EventRecorder
from drumline.kube.kinds import JOBS
from drumline_api.base import ANNOTATION_ADMITTED
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Policy
from tests.patience import HANG_SECONDS
from tests.unit.controller.workload_bodies import a_job, view
from tests.unit.controller.workload_state import NOW, held_gpus, two_nodes, workloads


@dataclass
class Site:
    """An API server with one Job, and an admission whose pauses end when the test says so."""

    state: ClusterCache
    job: dict[str, Any]
    code: int = 200
    """Of a write."""
    reads: int = 0
    pauses: asyncio.Queue[float] = field(default_factory=asyncio.Queue[float])
    goes_on: asyncio.Queue[None] = field(default_factory=asyncio.Queue[None])
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    admission: WorkloadAdmission | None = None

    async def sleep(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self.goes_on.get()

    async def read(self, _: web.Request) -> web.Response:
        self.reads += 1
        return web.json_response(self.job)

    async def write(self, request: web.Request) -> web.Response:
        if self.code != 200:
            return web.json_response({"message": "no", "code": self.code}, status=self.code)
        self.job = json.loads(await request.read())
        return web.json_response(self.job)

    def cycle(self) -> None:
        """Decide, and hand on what was decided."""
        assert self.admission is not None
        pending = self.state.scheduling.pending()
        snapshot = self.state.scheduling.snapshot(now=NOW)
        decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
        self.admission.take(decisions, pending=pending, stopped={})

    async def pause(self) -> float:
        """The next pause, once it has begun."""
        return await asyncio.wait_for(self.pauses.get(), HANG_SECONDS)

    async def end_pause(self) -> None:
        self.woken.clear()
        self.goes_on.put_nowait(None)
        await asyncio.wait_for(self.woken.wait(), HANG_SECONDS)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site(two_nodes(quota=16), a_job(parallelism=2))
    made.job["metadata"]["resourceVersion"] = "7"
    made.state.on_workload(JOBS, None, view(made.job))
    app = web.Application()
    app.router.add_get("/apis/batch/v1/namespaces/team/jobs/train", made.read)
    app.router.add_put("/apis/batch/v1/namespaces/team/jobs/train", made.write)
    runner = web.AppRunner(app)

    async def seen(*_: Any, **__: Any) -> None: ...

    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        credentials = Credentials(server=server, token=Token(lambda: None))
        client = await stack.enter_async_context(KubeClient(credentials))
        suspension = WorkloadSuspension(
            client=client, recorder=EventRecorder(client, instance="test")
        )
        made.admission = WorkloadAdmission(
            client=client,
            pools=made.state.pools,
            workloads=workloads(made.state),
            events=suspension.events,
            suspension=suspension,
            seen=seen,
            wake_scheduler=made.woken.set,
            sleep=made.sleep,
        )
        running = asyncio.create_task(made.admission.run())
        try:
            yield made
        finally:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


async def test_what_a_cycle_found_places_for_is_resumed(site: Site) -> None:
    site.cycle()
    await asyncio.wait_for(site.woken.wait(), HANG_SECONDS)
    assert site.job["spec"]["suspend"] is False
    assert site.pauses.empty()


async def test_what_grew_since_the_cycle_is_not_resumed(site: Site) -> None:
    site.job["spec"]["parallelism"] = 900
    site.cycle()
    assert await site.pause() == RETRY_SECONDS
    assert site.job["spec"]["suspend"] is True
    assert ANNOTATION_ADMITTED not in site.job["metadata"].get("annotations", {})


async def test_what_the_api_server_refuses_is_left_longer_each_time_and_keeps_no_places(
    site: Site,
) -> None:
    site.code = 422
    for pause in (5.0, 10.0, 20.0):
        site.cycle()
        assert await site.pause() == pause
        assert (held_gpus(site.state), site.state.scheduling.pending()) == (0, [])
        site.cycle()
        in_line = workloads(site.state).waiting_for("research")
        assert [each.reason for each in in_line] == ["ConfigRefused"] * (pause > RETRY_SECONDS)
        await site.end_pause()
    assert len(site.state.scheduling.pending()) == 1
    site.code = 200
    site.woken.clear()
    site.cycle()
    await asyncio.wait_for(site.woken.wait(), HANG_SECONDS)
    assert site.job["spec"]["suspend"] is False


async def test_what_no_schema_checked_ends_nobody(site: Site) -> None:
    """The run of the admission is the leader's: it would end with it."""
    site.job["spec"]["template"]["metadata"] = "none"
    site.cycle()
    assert await site.pause() == RETRY_SECONDS
    await site.end_pause()
    site.cycle()
    assert await site.pause() == 2 * RETRY_SECONDS


async def test_what_has_to_leave_is_asked_for_once_until_the_watch_may_show_it(site: Site) -> None:
    """It is suspended already, which the caches do not know."""
    let_go = {**site.job, "spec": {**site.job["spec"], "suspend": False}}
    let_go["metadata"] = {**let_go["metadata"], "annotations": {ANNOTATION_ADMITTED: "{}"}}
    site.state.on_workload(JOBS, view(site.job), view(let_go))
    assert site.admission is not None
    site.admission.take(Decisions(), pending=(), stopped={"research": "is drained"})
    assert await site.pause() == RETRY_SECONDS
    site.admission.take(Decisions(), pending=(), stopped={"research": "is drained"})
    assert (site.reads, site.pauses.empty()) == (1, True)
    await site.end_pause()
