"""Statuses that take long to write leave workers for the other jobs."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler.executor import RetryLater
from drumline.controller.reconciler.reconciler import MAX_REFUSED_WRITES, Reconciler
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.events import EventRecorder
from drumline.lifecycle.model.job import Job
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from drumline_api.jobstatus import TrainingJobStatus
from tests.builders import T0
from tests.unit.controller.views import job_view


class Gate:
    """Writes that the API server answers when it is opened."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.opened = asyncio.Event()

    async def write(self, job: Job, _status: TrainingJobStatus) -> None:
        self.begun.put_nowait(job.name)
        await self.opened.wait()
        raise asyncio.CancelledError  # the rest of the reconcile is of no interest


def reconciler_of(state: ClusterCache, gate: Gate, agents: AgentClient) -> Reconciler:
    metrics = Metrics()
    client = KubeClient(Credentials(server="http://127.0.0.1:1", token=Token(lambda: None)))
    return Reconciler(
        writer=cast("StatusWriter", gate),
        executor=cast("Any", None),
        watch=AgentWatch(agents=agents, enqueue=lambda _: None, clock=time.monotonic),
        state=state,
        epoch=1,
        progress_seconds=30.0,
        metrics=metrics,
        ledger=IncidentCounters(metrics),
        job_events=JobEvents(EventRecorder(client, instance="test")),
        clock=lambda: T0,
    )


async def test_statuses_of_refused_jobs_never_take_many_workers() -> None:
    state, gate = ClusterCache(nodes=NodeCache(clock=lambda: T0)), Gate()
    for number in range(MAX_REFUSED_WRITES + 2):
        name, overrides = f"bad-{number}", {"stepz": 1}
        state.on_job(None, job_view(name, uid=name, trainer={"overrides": overrides}))
    state.on_job(None, job_view("fine", uid="fine", suspend=True))
    async with AgentClient() as agents:
        reconciler = reconciler_of(state, gate, agents)
        writing = [
            asyncio.create_task(reconciler.reconcile(f"team/bad-{number}"))
            for number in range(MAX_REFUSED_WRITES)
        ]
        begun = [await gate.begun.get() for _ in writing]
        with pytest.raises(RetryLater):
            await reconciler.reconcile(f"team/bad-{MAX_REFUSED_WRITES}")
        fine = asyncio.create_task(reconciler.reconcile("team/fine"))
        assert await gate.begun.get() == "fine"
        gate.opened.set()
        await asyncio.wait([*writing, fine])
        last = asyncio.create_task(reconciler.reconcile(f"team/bad-{MAX_REFUSED_WRITES + 1}"))
        assert await gate.begun.get() == f"bad-{MAX_REFUSED_WRITES + 1}"
        await asyncio.wait([last])
    assert len(begun) == MAX_REFUSED_WRITES
