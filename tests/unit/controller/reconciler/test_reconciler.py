"""The agents that the operator asks: the members that know each other."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler.executor import Executor, GangRejected
from drumline.controller.reconciler.job_memory import JobMemory
from drumline.controller.reconciler.reconciler import Reconciler
from drumline.controller.reconciler.shared_objects import SharedObjects
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.snapshots import FIRST_BACKOFF_SECONDS
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.events import EventRecorder
from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.children import job_token
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.actions import Action, CreateMembers
from drumline.lifecycle.plan.elastic import growth_notice_id
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from drumline_api.conditions import Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from tests.builders import EPOCH, T0, a_job, admitted, running, with_status
from tests.fake_agents import FakeAgent
from tests.hostile_agents import HostileAgent, silent
from tests.patience import HANG_SECONDS
from tests.unit.controller.views import job_view, node_view, pod_view, pool_view, queue_view

KEY = b"a signing key"
SPEC: dict[str, Any] = {
    "nodes": 3,
    "minNodes": 1,
    "trainer": {"globalBatchSize": 12},
    "checkpoint": {"claimName": "shared"},
}
_addresses = itertools.count(start=2)


def a_gang_that_grows_at_its_lowest_index() -> Job:
    """Members 1 and 2 train since generation 2; the new member 0 is ready and knows no member."""
    job = running(admitted(a_job(**SPEC), nodes=("a", "b", "c")))
    job = with_status(job, transitions.resized(job, kept=[1, 2], added=(), epoch=EPOCH, now=T0 + 1))
    job = running(job)
    return with_status(
        job, transitions.resized(job, kept=[0, 1], added=["a"], epoch=EPOCH, now=T0 + 2)
    )


JOB = a_gang_that_grows_at_its_lowest_index()


@pytest.fixture
def agents() -> Iterator[list[FakeAgent]]:
    """By index."""
    started: list[FakeAgent] = []
    for member in members_of(JOB.status):
        number = next(_addresses)
        agent = FakeAgent(
            f"127.1.{number // 250}.{number % 250 + 1}",
            token=job_token(KEY, JOB.uid),
            job_uid=JOB.uid,
            pod_uid=f"{JOB.uid}-{member.index}-{member.pod_generation}",
            index=member.index,
            port=started[0].port if started else 0,
        )
        agent.change(generation=2 if member.pod_generation < 3 else 0)
        started.append(agent)
    yield started
    for agent in started:
        with suppress(OSError):
            agent.die()


class Operator:
    """A reconciler that was started a moment ago, without an API server to write to."""

    def __init__(self, *, port: int, state: ClusterCache) -> None:
        self.woken: asyncio.Queue[str] = asyncio.Queue()
        self.agents = AgentClient(port=port)
        self.watch = AgentWatch(
            agents=self.agents, enqueue=self.woken.put_nowait, clock=time.monotonic
        )
        self.delivered: asyncio.Queue[float] = asyncio.Queue()
        self.deliveries = Deliveries(
            enqueue_after=lambda _, seconds: self.delivered.put_nowait(seconds)
        )
        credentials = Credentials(server="http://127.0.0.1:1", token=Token(lambda: None))
        client, metrics = KubeClient(credentials), Metrics()
        self._reconciler = Reconciler(
            writer=StatusWriter(
                client=client,
                jobs=state.jobs,
                wake_scheduler=lambda: None,
                clock=time.monotonic,
                wall=lambda: T0 + 6,
            ),
            executor=Executor(
                client=client,
                agents=self.agents,
                deliveries=self.deliveries,
                pods=PodSettings(trainer_image="trainer:1", join_image="join:1"),
                signing_keys=SigningKeys(current=KEY),
                gpus_of=lambda _: PoolGpus(resource="nvidia.com/gpu"),
                shared=SharedObjects(
                    client=client,
                    settings=PodSettings(trainer_image="trainer:1", join_image="join:1"),
                    pods=tuple,
                    clock=time.monotonic,
                ),
                pods_of=lambda job: state.pods.of(job.namespace, job.uid),
                clock=lambda: T0 + 6,
                monotonic=time.monotonic,
                is_stuck=state.nodes.is_stuck,
            ),
            watch=self.watch,
            state=state,
            epoch=EPOCH,
            progress_seconds=30.0,
            metrics=metrics,
            ledger=IncidentCounters(metrics),
            job_events=JobEvents(EventRecorder(client, instance="test")),
            clock=lambda: T0 + 6,
        )

    async def reconcile(self) -> None:
        """Reconcile the job; returns when the delivery that it began has ended."""
        await self.reconcile_only()
        async with asyncio.timeout(HANG_SECONDS):
            await self.delivered.get()

    async def reconcile_only(self) -> float | None:
        return await self._reconciler.reconcile(JOB.key)

    def refuse_pods(self, state: ClusterCache) -> list[TrainingJobStatus]:
        """Refuse all pods. Returns the statuses that are written from now on."""
        written: list[TrainingJobStatus] = []

        async def act(_job: Job, action: Action, _memory: JobMemory) -> None:
            if isinstance(action, CreateMembers):
                raise GangRejected("exceeded quota: pods")

        async def write(job: Job, status: TrainingJobStatus) -> None:
            written.append(status)
            state.jobs.assume(replace(job, resource_version=str(1 + len(written)), status=status))

        reconciler = cast("Any", self._reconciler)
        reconciler._executor.act, reconciler._writer.write = act, write
        return written

    async def reconcile_on_news(self) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await self.woken.get()
        await self.reconcile()


@pytest.fixture
async def operator(agents: list[FakeAgent]) -> AsyncIterator[Operator]:
    state = ClusterCache(nodes=NodeCache(clock=lambda: T0 + 6))
    for name in ("a", "b", "c"):
        state.nodes.on_node(None, node_view(name))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    status = JOB.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    state.on_job(None, job_view(uid=JOB.uid, status=status, **SPEC))
    for member, agent in zip(members_of(JOB.status), agents, strict=True):
        place = {"node_name": member.node, "pod_ip": agent.address, "ready": True}
        pod = pod_view(
            index=member.index, generation=member.pod_generation, job_uid=JOB.uid, **place
        )
        state.on_pod(None, pod)
    notices = Operator(port=agents[0].port, state=state)
    async with notices.agents, notices.watch, notices.deliveries:
        yield notices


async def test_a_notice_goes_to_the_gang_that_trains_not_to_its_next_leader(
    operator: Operator, agents: list[FakeAgent]
) -> None:
    await operator.reconcile()
    assert [agent.notices for agent in agents] == [[], [], []]
    await operator.reconcile_on_news()
    assert [[notice.id for notice in agent.notices] for agent in agents] == [
        [],
        [growth_notice_id(JOB)],
        [],
    ]
    assert agents[0].requests == []


async def test_once_its_agents_know_the_new_members_the_lowest_is_asked(
    operator: Operator, agents: list[FakeAgent]
) -> None:
    for agent in agents:
        agent.change(generation=3)
    await operator.reconcile()
    await operator.reconcile_on_news()
    assert [[notice.id for notice in agent.notices] for agent in agents] == [
        [growth_notice_id(JOB)],
        [],
        [],
    ]
    await asyncio.to_thread(agents[0].wait_for, lambda agent: "/v1/status" in agent.requests)


async def test_a_silent_agent_keeps_no_worker(agents: list[FakeAgent], operator: Operator) -> None:
    for agent in agents:
        agent.change(generation=3)
    await operator.reconcile()  # begins to watch
    async with asyncio.timeout(HANG_SECONDS):
        await operator.woken.get()
    agents[0].change(attempt=1)  # ends the long poll; the next comes after PACE_SECONDS
    agents[0].die()
    async with HostileAgent(agents[0].address, silent, port=agents[0].port) as mute:
        await operator.reconcile_only()
        await mute.until_asked(1)
        assert (len(operator.deliveries), operator.delivered.empty()) == (1, True)


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
async def test_new_pods_wait_for_old_ones_whatever_the_clock_of_the_api_server_shows(
    ahead: float,
) -> None:
    template = {"image": "mine:1"}
    job = running(admitted(a_job(template=template), nodes=("a", "b")))
    job = with_status(
        job, transitions.requeued(job, reason=Reason.PREEMPTED, message="", now=T0 + 1)
    )
    job = admitted(job, nodes=("b", "c"), at=T0 + 2)
    state = ClusterCache(nodes=NodeCache(clock=lambda: T0 + 6))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    status = job.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    state.on_job(None, job_view(uid=job.uid, status=status, template=template, nodes=2))
    runs = pod_view(job_uid=job.uid, node_name="a")
    ends = {"deletion_time": timestamp(T0 + 36 + ahead), "grace_seconds": 30}
    state.on_pod(None, runs)
    state.on_pod(runs, pod_view(job_uid=job.uid, node_name="a", terminating=True, **ends))
    operator = Operator(port=1, state=state)
    async with operator.agents, operator.watch, operator.deliveries:
        assert await operator.reconcile_only() == 30.0


async def test_a_gang_whose_new_members_are_refused_trains_on_and_grows_later() -> None:
    job = running(admitted(a_job(**SPEC), nodes=("b", "c")))
    grows = transitions.resized(job, kept=[0, 1], added=["a"], epoch=EPOCH, now=T0 + 2)
    state = ClusterCache(nodes=NodeCache(clock=lambda: T0 + 6))
    for name in ("a", "b", "c"):
        state.nodes.on_node(None, node_view(name))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    status = grows.model_dump(mode="json", by_alias=True, exclude_none=True)
    state.on_job(None, job_view(uid=job.uid, status=status, **SPEC))
    for index, node in enumerate(("b", "c")):
        state.on_pod(None, pod_view(index=index, job_uid=job.uid, node_name=node, ready=True))
    operator = Operator(port=1, state=state)
    statuses = operator.refuse_pods(state)
    async with operator.agents, operator.watch, operator.deliveries:
        await operator.reconcile_only()
    abandoned = statuses[0]
    assert abandoned.assignment is not None
    assert (abandoned.assignment.node_names(), abandoned.phase) == (("b", "c"), Phase.RUNNING)
    assert "exceeded quota" in (abandoned.message or "")
    assert abandoned.failed_starts is None
    backoff = state.scheduling.backoffs[job.uid]
    assert (backoff.until, backoff.of_growth) == (T0 + 6 + FIRST_BACKOFF_SECONDS, True)
    (held,) = state.scheduling.snapshot(now=T0 + 6).admitted
    assert held.gang.retry_at == backoff.until
    lost = transitions.members_lost(
        with_status(job, abandoned), indices=[1], reason=Reason.POD_LOST, message="", now=T0 + 7
    )
    after = state.jobs.get(job.key)
    assert after is not None
    state.jobs.assume(replace(after, resource_version="9", status=lost))
    (held,) = state.scheduling.snapshot(now=T0 + 7).admitted
    assert held.gang.retry_at == 0.0
