"""Small generated clusters as `kubectl get -o json` prints them, with what the operator writes.

A seed makes one or two pools, up to four queues (some in a cohort, some held), jobs that run, wait,
were preempted or have ended, and pods of other workloads. `written` lets the real operator look at
these objects (its caches, cycle, forecasts, messages and usage reports) and returns them with the
statuses that it writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.health import NodeHealthBook
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.scheduler.waiting_messages import WaitingMessages
from drumline.controller.scheduler.waiting_text import text_of
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.usage.platform_conditions import PodEvictions
from drumline.controller.usage.reporter import UsageReporter
from drumline.kube import codec
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.kube.informer import Informer
from drumline.kube.request import Request
from drumline.kube.views import Key, ObjectView
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Policy

Json = dict[str, Any]
NOW = 1_700_000_000.0
API = "drumline.dev/v1alpha1"
GPUS = 8
KEYS = SigningKeys(current=b"a key for tests that is long enough")


@dataclass
class ToldCluster:
    """The objects, and what was put where."""

    objects: list[Json]
    free: Counter[str]
    """GPUs by node that nothing holds."""
    foreign: Counter[str] = field(default_factory=Counter[str])
    """GPUs by node that pods of other workloads hold."""
    began_to_wait: dict[str, float] = field(default_factory=dict[str, float])
    """Time at which each job last began to wait."""

    def of(self, kind: str) -> list[Json]:
        """Return the objects of a kind."""
        return [each for each in self.objects if each["kind"] == kind]


def told_cluster(seed: int) -> ToldCluster:
    """Return the cluster of a seed, before the operator has looked at it."""
    chance = Random(seed)
    pools = [f"pool-{number}" for number in range(chance.choice((1, 1, 2)))]
    nodes = [
        _node(f"{pool}-{number}", pool, rack=f"rack-{number % 12}")
        for pool in pools
        for number in range(chance.randint(1, 4))
    ]
    free = Counter({node["metadata"]["name"]: GPUS for node in nodes})
    queues = _queues(chance, pools)
    scene = ToldCluster(objects=[*map(_pool, pools), *nodes, *queues], free=free)
    scene.objects.append(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high", "uid": "high", "resourceVersion": "1"},
            "value": 100,
        }
    )
    names = [queue["metadata"]["name"] for queue in queues]
    for number in range(chance.randint(0, 3)):
        _put_foreign(scene, chance, number, queues=names)
    for number in range(chance.randint(0, 5)):
        _put_running(scene, chance, f"runs-{number}", queue=chance.choice(names), pools=pools)
    for number in range(chance.randint(1, 7)):
        _put_waiting(scene, chance, f"waits-{number}", queue=chance.choice(names), pools=pools)
    if chance.random() < 0.3:
        ended = {"phase": "Succeeded", "reason": "Completed", "finishedAt": timestamp(NOW - 60)}
        scene.objects.append(_job("ended", queue=names[0], created=NOW - 9000, status=ended))
    return scene


def _pool(name: str) -> Json:
    levels = [{"name": "rack", "nodeLabel": "rack"}]
    spec = {"nodeSelector": {"pool": name}, "topologyLevels": levels}
    return {"apiVersion": API, "kind": "GpuPool", "metadata": _metadata(name), "spec": spec}


def _node(name: str, pool: str, *, rack: str) -> Json:
    amounts = {"nvidia.com/gpu": str(GPUS), "cpu": "96", "memory": "1Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**_metadata(name), "labels": {"pool": pool, "rack": rack}},
        "spec": {},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _queues(chance: Random, pools: list[str]) -> list[Json]:
    made: list[Json] = []
    for number in range(chance.randint(1, 4)):
        of = pools if chance.random() < 0.6 else [chance.choice(pools)]
        quotas = [
            {"gpuPool": pool, "nominalGpus": chance.choice((0, 8, 16, 24, 32))} for pool in of
        ]
        spec: Json = {"quotas": quotas}
        if number and chance.random() < 0.4:
            spec["parent"] = "queue-0"
        if chance.random() < 0.15:
            spec["stopPolicy"] = "Hold"
        name = f"queue-{number}"
        made.append(
            {"apiVersion": API, "kind": "TrainingQueue", "metadata": _metadata(name), "spec": spec}
        )
    return made


def _metadata(name: str, *, namespace: str = "", created: float = NOW - 100_000) -> Json:
    where = {"namespace": namespace} if namespace else {}
    return {
        "name": name,
        **where,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": timestamp(created),
    }


def _job(name: str, *, queue: str, created: float, status: Json, **spec: Any) -> Json:
    template = {"image": "any:1", "command": ["any"]}
    base = {"queue": queue, "nodes": 1, "gpusPerNode": GPUS, "template": template}
    return {
        "apiVersion": API,
        "kind": "TrainingJob",
        "metadata": _metadata(name, namespace="team", created=created),
        "spec": base | spec,
        "status": status,
    }


def _put_foreign(scene: ToldCluster, chance: Random, number: int, *, queues: list[str]) -> None:
    gpus = chance.choice((1, 2, 4))
    node = next((name for name, free in sorted(scene.free.items()) if free >= gpus), None)
    if node is None:
        return
    labels = {"drumline.dev/queue": chance.choice(queues)} if chance.random() < 0.6 else {}
    amount = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "resources": {"limits": amount, "requests": amount}}
    scene.free[node] -= gpus
    scene.foreign[node] += gpus
    scene.objects.append(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**_metadata(f"other-{number}", namespace="team"), "labels": labels},
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running", "startTime": timestamp(NOW - 3000)},
        }
    )


def _put_running(
    scene: ToldCluster, chance: Random, name: str, *, queue: str, pools: list[str]
) -> None:
    pool, gpus = chance.choice(pools), chance.choice((2, 4, 8, 8))
    fits = [
        node for node, free in sorted(scene.free.items()) if node.startswith(pool) and free >= gpus
    ]
    nodes = fits[: chance.randint(1, 2)]
    if not nodes:
        return
    since = NOW - chance.choice((30, 600, 7200))
    status = {
        "phase": "Running",
        "reason": "Training",
        "generation": 1,
        "epoch": 1,
        "observedGeneration": 1,
        "queuedAt": timestamp(since - 50),
        "admittedAt": timestamp(since),
        "startedAt": timestamp(since + 5),
        "ready": f"{len(nodes)}/{len(nodes)}",
        "assignment": {"gpuPool": pool, "nodes": nodes},
        "gpuSeconds": {"until": timestamp(since)},
        "conditions": [
            {
                "type": "Running",
                "status": "True",
                "reason": "Training",
                "message": "",
                "lastTransitionTime": timestamp(since + 5),
            }
        ],
    }
    limit = {"activeDeadlineSeconds": 10_000} if chance.random() < 0.7 else {}
    job = _job(
        name,
        queue=queue,
        created=since - 60,
        status=status,
        nodes=len(nodes),
        gpusPerNode=gpus,
        gpuPool=pool,
        **limit,
    )
    scene.objects.append(job)
    for index, node in enumerate(nodes):
        scene.free[node] -= gpus
        scene.objects.append(_member(name, index, node=node, gpus=gpus))


def _member(job: str, index: int, *, node: str, gpus: int) -> Json:
    amount = {"nvidia.com/gpu": str(gpus)}
    labels = {
        "drumline.dev/job": job,
        "drumline.dev/job-uid": f"uid-{job}",
        "drumline.dev/index": str(index),
        "drumline.dev/generation": "1",
    }
    metadata = _metadata(f"{job}-{index}-g1", namespace="team")
    metadata["ownerReferences"] = [
        {"uid": f"uid-{job}", "controller": True, "kind": "TrainingJob", "name": job}
    ]
    container = {"name": "main", "resources": {"limits": amount, "requests": amount}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "startTime": timestamp(NOW - 3000)},
    }


def _put_waiting(
    scene: ToldCluster, chance: Random, name: str, *, queue: str, pools: list[str]
) -> None:
    queued = NOW - chance.randint(1, 5000)
    status: Json = {"phase": "Pending", "queuedAt": timestamp(queued)}
    scene.began_to_wait[f"team/{name}"] = queued
    if chance.random() < 0.2:  # it ran, and was preempted
        ended = NOW - chance.randint(1, 600)
        stay = {"since": timestamp(ended - 300), "until": timestamp(ended), "gpus": GPUS}
        queued = ended - 1000
        status["queuedAt"] = timestamp(queued)
        account = {"until": timestamp(ended), "productive": 300 * GPUS, "stays": [stay]}
        status["gpuSeconds"] = account
        scene.began_to_wait[f"team/{name}"] = ended
    spec: Json = {"nodes": chance.choice((1, 1, 2, 3, 9)), "gpusPerNode": chance.choice((1, 4, 8))}
    if chance.random() < 0.4:
        spec["gpuPool"] = chance.choice(pools)
    if chance.random() < 0.3:
        spec["priorityClassName"] = "high"
    if chance.random() < 0.6:
        spec["activeDeadlineSeconds"] = 1000
    scene.objects.append(_job(name, queue=queue, created=queued, status=status, **spec))


# --- the operator ------------------------------------------------------------------------------


def cache_of(objects: Iterable[Json]) -> ClusterCache:
    """Return the operator's caches of these objects."""
    cache = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
    for each in objects:
        raw = json.dumps(each).encode()
        match each["kind"]:
            case "GpuPool":
                cache.on_pool(None, codec.custom_object(raw))
            case "TrainingQueue":
                cache.on_queue(None, codec.custom_object(raw))
            case "PriorityClass":
                cache.on_priority_class(None, codec.priority_class(raw))
            case "Node":
                cache.nodes.on_node(None, codec.node(raw))
            case "Pod":
                cache.on_pod(None, codec.pod(raw))
            case _:
                assert cache.on_job(None, codec.training_job(raw)) is None
    return cache


async def written(scene: ToldCluster, *, metrics: Metrics) -> Decisions:
    """Write what the operator writes into the statuses; return its decisions."""
    cache = cache_of(scene.objects)
    pending = tuple(cache.scheduling.pending())
    usage = QueueUsageHistory(half_life=3600.0)
    forecasts = Forecasts(
        state=cache,
        usage=usage,
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: None,
        caught_up=_at_once,
        metrics=metrics.forecasts,
    )
    await forecasts.forecast()
    snapshot = cache.scheduling.snapshot(now=NOW)
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    forecasts.add_rough_forecasts(decisions.blocked, snapshot=snapshot, pending=pending, now=NOW)
    _write_texts(scene, cache, decisions=decisions, forecasts=forecasts)
    await _report(scene, cache, usage=usage, forecasts=forecasts, metrics=metrics)
    return decisions


async def _at_once() -> None:
    """Nothing to catch up with."""


def _write_texts(
    scene: ToldCluster, cache: ClusterCache, *, decisions: Decisions, forecasts: Forecasts
) -> None:
    messages = WaitingMessages(
        state=cache,
        writer=cast("StatusWriter", None),
        job_events=cast("JobEvents", None),
        expected=forecasts.of,
        clock=lambda: NOW,
    )
    before: Counter[str] = Counter()
    for blocked in decisions.blocked:
        job = cache.jobs.get(blocked.key)
        if job is not None and job.status.assignment is None:
            position = before[job.spec.queue]
            before[job.spec.queue] += 1
            text = text_of(blocked, position=position)
            messages.set(job, reason=str(blocked.reason), message=text, position=position)
    by_name = {each["metadata"]["name"]: each for each in scene.of("TrainingJob")}
    while texts := messages.take():
        for text in texts:
            job = by_name[text.key.partition("/")[2]]
            times = {"expectedStart": text.start, "expectedStartBy": text.start_by}
            known = {name: timestamp(at) for name, at in times.items() if at is not None}
            job["status"] |= {"reason": text.reason, "message": text.message, **known}
            entry = {"manager": "drumline", "subresource": "status", "time": timestamp(NOW)}
            job["metadata"]["managedFields"] = [entry]


class _Statuses(KubeClient):
    """Keeps the statuses that are written, by kind and name."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], Json] = {}

    async def send(self, request: Request) -> bytes:
        patch = {each["path"]: each["value"] for each in json.loads(request.body or b"[]")}
        name = request.path.split("/")[-2]
        self.of[request.resource.plural, name] = patch["/status"]
        return json.dumps({"metadata": {"uid": f"uid-{name}", "resourceVersion": "2"}}).encode()


async def _report(
    scene: ToldCluster,
    cache: ClusterCache,
    *,
    usage: QueueUsageHistory,
    forecasts: Forecasts,
    metrics: Metrics,
) -> None:
    client = _Statuses()
    views = {
        kind: {
            Key("", each["metadata"]["name"]): codec.custom_object(json.dumps(each).encode())
            for each in scene.of(kind)
        }
        for kind in ("TrainingQueue", "GpuPool")
    }
    reporter = UsageReporter(
        client=client,
        state=cache,
        queues=cast("Informer[ObjectView]", views["TrainingQueue"]),
        pools=cast("Informer[ObjectView]", views["GpuPool"]),
        metrics=metrics,
        job_metrics=100,
        usage=usage,
        health=NodeHealthBook(
            jobs=cache.jobs.all,
            pools=lambda: cache.pools.by_name,
            nodes=cache.nodes,
            status_of=lambda _: None,
            recorder=cast("EventRecorder", None),
            uid_of=lambda _: None,
            wake_scheduler=lambda: None,
            metrics=metrics,
        ),
        signing_keys=KEYS,
        progress=lambda _: None,
        autoscaling=lambda _: {},
        expected=forecasts.of,
        recorder=EventRecorder(client, instance="told"),
        evictions=PodEvictions(),
        clock=lambda: NOW,
    )
    await reporter.report()
    for kind, plural in (("TrainingQueue", "trainingqueues"), ("GpuPool", "gpupools")):
        for each in scene.of(kind):
            each["status"] = client.of.get((plural, each["metadata"]["name"]), {})
