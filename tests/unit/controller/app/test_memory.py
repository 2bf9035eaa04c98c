"""What a leader remembers of jobs that are gone: nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from contextvars import Context
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import msgspec

from drumline.app.leader import AgentAccess, LeaderComponents, Term
from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.controller.state.warm_caches import WarmCaches
from drumline.kube.client import KubeClient
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.settings import Settings
from drumline.telemetry.metrics import Metrics
from tests.patience import HANG_SECONDS
from tests.unit.controller.app.fake_api import FakeApi

JOBS = 24
"""In a round; eight of them fit."""
IN_HAND = 3
"""Of the 48 jobs that are looked for: a task that waits keeps the last one that it had in hand."""
OUTSIDE = (
    ModuleType,
    FunctionType,
    CodeType,
    type,
    asyncio.AbstractEventLoop,
    asyncio.Handle,
    KubeClient,
    AgentClient,
    Context,
)
"""What a walk does not enter: the program itself, the loop, and connections."""


def texts(*roots: object) -> list[str]:
    """Every text that can be reached from the roots."""
    gc.collect()
    seen: dict[int, object] = {}
    ahead: list[Any] = list(roots)
    while ahead:
        current = ahead.pop()
        if id(current) not in seen and not isinstance(current, OUTSIDE):
            seen[id(current)] = current
            ahead += gc.get_referents(current)
            # The collector visits neither the texts that are keys nor structs without `gc`.
            if isinstance(current, dict):
                ahead += [*cast("dict[Any, Any]", current)]
            elif isinstance(current, msgspec.Struct):
                ahead += msgspec.structs.astuple(current)
    return [text for text in seen.values() if isinstance(text, str)]


def cluster(api: FakeApi) -> None:
    """One node of eight GPUs, its pool, and a queue."""
    spec: dict[str, Any] = {"nodeSelector": {"gpu": "h100"}}
    api.put("gpupools", {"metadata": {"name": "h100"}, "spec": spec})
    quotas = [{"gpuPool": "h100", "nominalGpus": 64}]
    api.put("trainingqueues", {"metadata": {"name": "research"}, "spec": {"quotas": quotas}})
    allocatable = {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti", "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    api.put("nodes", {"metadata": {"name": "n1", "labels": {"gpu": "h100"}}, "status": status})


async def come_and_go(api: FakeApi, number: int) -> frozenset[str]:
    """Jobs are created, some start, a pod is evicted, all are deleted; returns their uids."""
    spec = {"queue": "research", "nodes": 1, "gpusPerNode": 1, "template": {"image": "any:1"}}
    names = [f"job-{number}-{index}" for index in range(JOBS)]
    metadata = [{"namespace": "team", "name": name} for name in names]
    created = [api.put("trainingjobs", {"metadata": each, "spec": spec}) for each in metadata]
    await api.until(lambda: len(api.objects("pods")) == 8)
    await api.until(lambda: all("phase" in job.get("status", {}) for job in jobs(api)))
    pod = {**api.objects("pods")[0], "status": {"phase": "Failed", "reason": "Evicted"}}
    api.put("pods", pod)
    await api.until(lambda: any(job["status"].get("incident") for job in jobs(api)))
    for name in names:
        api.remove("trainingjobs", "team", name)
    await api.until(lambda: not api.objects("pods"))
    for plural in ("networkpolicies", "secrets", "poddisruptionbudgets", "events"):
        for child in api.objects(plural):  # the garbage collector's work
            # An event of a queue is in another namespace than those of jobs.
            api.remove(plural, child["metadata"]["namespace"], child["metadata"]["name"])
    return frozenset(job["metadata"]["uid"] for job in created)


def jobs(api: FakeApi) -> list[Any]:
    return api.objects("trainingjobs")


async def remembered(uids: frozenset[str], *roots: object) -> list[str]:
    """Which of these uids can be reached: once none can, or in the end."""
    words = uids.intersection(texts(*roots))
    deadline = time.monotonic() + HANG_SECONDS
    while len(words) > IN_HAND and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        words = uids.intersection(texts(*roots))
    return sorted(words)


async def test_a_leader_forgets_jobs_that_are_gone() -> None:
    api, metrics = FakeApi(), Metrics()
    cluster(api)
    queue = WorkQueue(clock=time.monotonic)
    async with (
        api.serving() as credentials,
        KubeClient(credentials, observe=metrics.observe_request) as client,
        AgentClient() as agents,
        AgentWatch(agents=agents, enqueue=queue.add, clock=time.monotonic) as watch,
        Deliveries(enqueue_after=queue.add_after) as deliveries,
        asyncio.TaskGroup() as group,
    ):
        term = Term(
            client=client,
            epoch=1,
            signing_keys=SigningKeys(current=b"k" * 32),
            settings=Settings(),
            metrics=metrics,
        )
        access = AgentAccess(client=agents, watch=watch, deliveries=deliveries)
        caches = WarmCaches(client, settings=Settings(), metrics=metrics, wall=time.time)
        leader = LeaderComponents(term, caches=caches, queue=queue, agents=access)
        running = group.create_task(_lead(leader, caches, tasks := asyncio.TaskGroup()))
        await api.until(lambda: any("gpus" in pool.get("status", {}) for pool in pools(api)))
        roots = (leader, tasks, queue, watch, deliveries, metrics)
        await come_and_go(api, 0)  # an example of each class of jobs is kept
        gone = await come_and_go(api, 1) | await come_and_go(api, 2)
        await come_and_go(api, 3)  # the newest are in the scheduler's last snapshot
        words = await remembered(gone, *roots)
        running.cancel()
    assert len(words) <= IN_HAND, words


def pools(api: FakeApi) -> list[Any]:
    return api.objects("gpupools")


async def _lead(leader: LeaderComponents, caches: WarmCaches, group: asyncio.TaskGroup) -> None:
    async with group:
        await caches.fill(group)
        leader.start(group)
