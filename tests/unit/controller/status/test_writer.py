"""A write whose answer is lost: no place and no GPU of quota is given away twice.

And which writes the scheduler has to hear of.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec
from drumline.kube.client import WRITE_DEADLINE_SECONDS, KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.errors import Conflict, KubeError, Unreachable
from drumline.kube.retry import RetryPolicy
from drumline.kube.views import TrainingJobView
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.transitions import membership
from drumline_api.conditions import DisruptionKind, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.model import Policy
from tests.patience import HANG_SECONDS
from tests.unit.controller.views import CREATED, job_view, node_view, pool_view, queue_view

NOW = 1_800_000_000.0


@dataclass
class ApiServer:
    """One TrainingJob, with answers that get lost."""

    version: int = 1
    status: dict[str, Any] = field(default_factory=dict[str, Any])
    losses: list[str] = field(default_factory=list[str])
    """What happens to the next patches: `after` or `before` the write, the connection breaks;
    `error`: a 500 after the write."""
    reads_fail: bool = False
    gone: bool = False

    async def patch(self, request: web.Request) -> web.Response:
        """A status write onto a version."""
        _, version, status = json.loads(await request.read())
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            return _cut(request)
        if version["value"] != str(self.version):
            return _refusal(409, "Conflict")
        self.version += 1
        self.status = status["value"]
        if loss == "after":
            return _cut(request)
        if loss == "error":
            return _refusal(500, "InternalError")
        return web.json_response({"metadata": {"uid": "job-1", "resourceVersion": self.shown}})

    async def get(self, request: web.Request) -> web.Response:
        """The job as stored."""
        if self.reads_fail:
            return _cut(request)
        if self.gone:
            return _refusal(404, "NotFound")
        view = self.view()
        metadata = {
            "namespace": view.namespace,
            "name": view.name,
            "uid": view.uid,
            "resourceVersion": view.resource_version,
            "creationTimestamp": CREATED,
        }
        return web.json_response(
            {"metadata": metadata, "spec": codec.spec_of(view), "status": self.status}
        )

    @property
    def shown(self) -> str:
        """The version of now."""
        return str(self.version)

    def view(self) -> TrainingJobView:
        """What the watch shows."""
        return job_view(version=self.version, status=self.status, template={"image": "a"})


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def _refusal(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return web.json_response(body, status=code)


class Site:
    """A writer, its caches and the API server."""

    def __init__(self, client: KubeClient, api: ApiServer) -> None:
        self.api = api
        self.seconds = 100.0
        self.woken = asyncio.Event()
        self.state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
        self.state.on_pool(None, pool_view())
        self.state.on_queue(None, queue_view(gpus=4))
        for name in ("node-0", "node-1"):
            self.state.nodes.on_node(None, node_view(name))
        self.state.on_job(None, api.view())
        self.writer = StatusWriter(
            client=client,
            jobs=self.state.jobs,
            wake_scheduler=self.woken.set,
            clock=lambda: self.seconds,
            wall=lambda: NOW,
        )

    @property
    def job(self) -> Job:
        """The newest version known."""
        job = self.state.jobs.get("team/llama")
        assert job is not None
        return job

    async def admit(self) -> None:
        """Write what a cycle decided about the job."""
        nodes = ("node-0", "node-1")
        await self.writer.write(
            self.job,
            membership.admitted(
                self.job, pool="h100", nodes=nodes, epoch=1, image="a", priority=0, now=NOW
            ),
        )

    def started(self) -> list[str]:
        """The jobs that a cycle would start now beside another one of the same shape."""
        self.state.on_job(None, job_view("next", uid="next", template={"image": "a"}))
        decisions = decide(
            CycleInput(
                snapshot=self.state.scheduling.snapshot(now=NOW),
                pending=self.state.scheduling.pending(),
                policy=Policy(),
                now=NOW,
            )
        )
        return [start.uid for start in decisions.placed]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    api = ApiServer()
    app = web.Application()
    path = "/apis/drumline.dev/v1alpha1/namespaces/team/trainingjobs/llama"
    app.router.add_patch(f"{path}/status", api.patch)
    app.router.add_get(path, api.get)
    runner = web.AppRunner(app)
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        credentials = Credentials(server=server, token=Token(lambda: None))
        quick = RetryPolicy(attempts=2, base_seconds=0.001, cap_seconds=0.001)
        client = await stack.enter_async_context(KubeClient(credentials, retry=quick))
        yield Site(client, api)


@pytest.mark.parametrize("loss", ["after", "error"])
async def test_a_write_that_took_effect_is_recognised_by_reading_it_back(
    site: Site, loss: str
) -> None:
    site.api.losses = [loss]
    await site.admit()
    assert site.job.resource_version == site.api.shown
    assert site.job.status.assignment is not None
    assert not site.state.jobs.in_doubt()
    assert site.started() == []


async def test_another_write_in_between_is_a_conflict_and_what_it_says_counts(site: Site) -> None:
    site.api.losses = ["before"]
    site.api.version, site.api.status = 7, {"step": 3}
    with pytest.raises(Conflict):
        await site.admit()
    assert (site.job.resource_version, site.job.status.step) == ("7", 3)
    assert not site.state.jobs.in_doubt()


@pytest.mark.parametrize("losses", [["after"], ["after", "before"], ["error"]], ids=str)
async def test_its_places_are_given_to_no_job_until_it_can_be_read(
    site: Site, losses: list[str]
) -> None:
    site.api.losses, site.api.reads_fail = losses, True
    with pytest.raises(KubeError):
        await site.admit()
    assert site.job.status.assignment is None
    assert site.started() == []
    site.seconds += 10 * WRITE_DEADLINE_SECONDS
    await site.writer.read_doubts()
    assert site.started() == []
    site.api.reads_fail = False
    await site.writer.read_doubts()
    assert site.job.status.assignment is not None
    assert not site.state.jobs.in_doubt()
    assert site.started() == []


async def test_the_watch_decides_as_well(site: Site) -> None:
    site.api.losses, site.api.reads_fail = ["after", "before"], True
    with pytest.raises(Unreachable):
        await site.admit()
    site.state.on_job(None, site.api.view())
    assert not site.state.jobs.in_doubt()
    assert site.started() == []


async def test_a_write_that_never_arrives_holds_places_until_the_server_has_dropped_it(
    site: Site,
) -> None:
    site.api.losses = ["before", "before"]
    with pytest.raises(Unreachable):
        await site.admit()
    assert site.started() == []
    await site.writer.read_doubts()
    assert site.started() == []
    site.seconds += WRITE_DEADLINE_SECONDS
    await site.writer.read_doubts()
    assert not site.state.jobs.in_doubt()
    assert site.started() == ["job-1"]


async def test_a_job_that_is_gone_holds_nothing(site: Site) -> None:
    site.api.losses, site.api.gone = ["before", "before"], True
    with pytest.raises(Unreachable):
        await site.admit()
    assert not site.state.jobs.in_doubt()


async def test_whoever_waits_for_the_places_is_tried_again_once_they_are_free(site: Site) -> None:
    site.api.losses = ["before", "before"]
    settling = asyncio.create_task(site.writer.settle_doubts())
    with pytest.raises(Unreachable):
        await site.admit()
    site.seconds += WRITE_DEADLINE_SECONDS
    async with asyncio.timeout(HANG_SECONDS):
        await site.woken.wait()
    assert not site.state.jobs.in_doubt()
    settling.cancel()
    with suppress(asyncio.CancelledError):
        await settling


async def test_a_conflict_at_the_first_attempt_is_no_doubt(site: Site) -> None:
    site.api.version, site.api.reads_fail = 7, True
    with pytest.raises(Conflict):
        await site.admit()
    assert not site.state.jobs.in_doubt()


async def test_only_places_that_the_job_does_not_hold_already_are_kept_for_it(site: Site) -> None:
    await site.admit()
    site.api.losses, site.api.reads_fail = ["before", "before"], True
    job = site.job
    status = membership.members_replaced(
        job, nodes=("node-0", "node-0"), replaced={1}, epoch=1, now=NOW
    )
    with pytest.raises(Unreachable):
        await site.writer.write(job, status)
    held, beside = site.state.scheduling.snapshot(now=NOW).admitted
    assert (held.assignment, beside.assignment) == (("node-0", "node-1"), ("node-0",))
    assert (beside.reserved, beside.preemptible, beside.gpus) == (frozenset({0}), False, 2)


async def test_a_gang_that_starts_to_run_on_its_places_wakes_no_scheduler(site: Site) -> None:
    async def wakes(status: TrainingJobStatus) -> bool:
        site.woken.clear()
        await site.writer.write(site.job, status)
        return site.woken.is_set()

    await site.admit()
    assert site.woken.is_set()
    assert not await wakes(transitions.running(site.job, now=NOW))
    notice = {"kind": DisruptionKind.MAINTENANCE, "by": "a taint", "message": "", "deadline": None}
    assert await wakes(transitions.disrupted(site.job, **notice, indices=[1], now=NOW))
    assert await wakes(transitions.movable(site.job, message="saved", now=NOW))
    assert await wakes(
        transitions.members_lost(
            site.job, indices=[1], reason=Reason.POD_LOST, message="gone", now=NOW
        )
    )
    assert await wakes(transitions.succeeded(site.job, progress=None, now=NOW))
