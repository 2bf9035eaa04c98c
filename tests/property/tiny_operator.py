"""The real operator, taking one step in a tiny cluster.

`cycle` and `reconcile` fill the operator's real caches from a cluster, let the real scheduler and
committer, or reconciler and executor, work against a client that keeps its objects in memory, and
give the cluster they leave, and every cluster that an end in the middle of the step leaves: writes
that are under way together are committed in any part. Each step is taken by an operator that
remembers nothing of those before, and sees its own writes at once.

The pool may grow: then an autoscaler is asked after the cycle as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler.executor import Executor, RetryLater
from drumline.controller.reconciler.reconciler import Reconciler
from drumline.controller.reconciler.shared_objects import SharedObjects
from drumline.controller.scheduler.checked_starts import CheckedStarts
from drumline.controller.scheduler.committer import Committer
from drumline.controller.scheduler.unwritten_statuses import UnwrittenStatuses
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.evictions import ForeignEvictions
from drumline.kube import codec, errors
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.kube.request import Request
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.model import Policy
from tests.builders import may_start
from tests.property.invariants import violations
from tests.property.tiny_autoscaler import TinyAutoscaler, TinyNodeRequests
from tests.property.tiny_cluster import EPOCH, NAMESPACE, NOW, JobState, Json, text_of
from tests.property.tiny_workloads import admit, released_by, suspension
from tools.cluster.kwok import fake_node

METRICS = Metrics()
KEYS = SigningKeys(current=b"a key for tests that is long enough")
SETTINGS = PodSettings(
    trainer_image="trainer:1",
    join_image="operator:1",
    priority_class="drumline-training-pods",
    operator_namespace="drumline-system",
    trainer_pod={},
    metrics_from=[],
)
NODES = tuple(fake_node(number, gpus=8, nodes_per_rack=3) for number in range(3))
ALREADY = json.dumps({"reason": "AlreadyExists", "code": 409}).encode()
TURNS = 4
"""Turns of the event loop after which every task of a step waits for an answer."""
States = Mapping[str, JobState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step of the operator."""

    after: States
    """Jobs that are there after it."""
    cut: tuple[States, ...]
    """What an end in its middle leaves, each once."""
    wrong: tuple[str, ...]
    released: frozenset[str] = frozenset()
    """Pods whose gate is gone."""


def cycle(
    states: States,
    *,
    quota: int,
    autoscaler: TinyAutoscaler | None = None,
    gated: Sequence[Json] = (),
) -> Taken:
    """One cycle of the scheduler, with pods that wait at a gate."""
    operator = _Operator(states, quota=quota, autoscaler=autoscaler, gated=gated)
    return operator.take(operator.cycle())


def reconcile(
    name: str, states: States, *, quota: int, autoscaler: TinyAutoscaler | None = None
) -> Taken:
    """One of these jobs, until it says that nothing is left to do."""
    operator = _Operator(states, quota=quota, autoscaler=autoscaler)
    return operator.take(operator.reconcile(name))


@dataclass
class _TinyApi(KubeClient):
    """The client of one step: it writes into memory, and the caches see it at once."""

    states: dict[str, JobState]
    cache: ClusterCache = field(init=False)
    pod_patches: list[tuple[str, Json]] = field(default_factory=list[tuple[str, Json]])
    """Names of pods, and what was changed of them."""
    cut: dict[tuple[tuple[str, JobState], ...], None] = field(default_factory=dict[Any, None])
    _under_way: list[tuple[Request, asyncio.Future[bytes]]] = field(
        default_factory=list[tuple[Request, asyncio.Future[bytes]]]
    )

    async def send(self, request: Request) -> bytes:
        if request.resource.plural == "events" or request.reads:
            raise errors.from_answer(code=404, body=b"{}", retry_after=None)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._under_way.append((request, answer))
        return await answer

    async def serve(self) -> None:
        """Answer, once nobody writes more without an answer; until cancelled."""
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            together, self._under_way = self._under_way, []
            self._note_cuts([request for request, _ in together])
            for request, answer in together:
                try:
                    written = json.dumps(self._write(request, shown=True)).encode()
                except errors.KubeError as error:
                    answer.set_exception(error)
                else:
                    answer.set_result(written)

    def _note_cuts(self, together: list[Request]) -> None:
        """Any part of these may be what an operator leaves that ends now."""
        states = dict(self.states)
        for size in range(len(together) + 1) if together else ():
            for part in combinations(together, size):
                for request in part:
                    with suppress(errors.KubeError):
                        self._write(request, shown=False)
                self.cut[tuple(sorted(self.states.items()))] = None
                self.states = dict(states)

    def _write(self, request: Request, *, shown: bool) -> Json:
        plural, body = request.resource.plural, json.loads(request.body or b"{}")
        match request.method, plural:
            case "POST", "pods":
                return self._create_pod(body, shown=shown)
            case "POST", _:
                return self._create_child(plural, body)
            case "PATCH", "trainingjobs":
                return self._replace_status(request.path.split("/")[-2], body)
            case "PATCH", "pods" if shown:
                self.pod_patches.append((request.path.rpartition("/")[2], body))
                return {"metadata": {"uid": "u", "resourceVersion": "1"}}
            case "PATCH", _:
                return {"metadata": {"uid": "u", "resourceVersion": "1"}}
            case "DELETE", "pods":
                self._delete_pods(request, body, shown=shown)
                return {}
            case _:
                raise AssertionError(f"{request.method} {request.path}")

    def _replace_status(self, name: str, body: list[Json]) -> Json:
        patch = {each["path"]: each["value"] for each in body}
        known = self.cache.jobs.get(f"{NAMESPACE}/{name}")
        assert known is not None
        if patch["/metadata/resourceVersion"] != known.resource_version:
            raise errors.from_answer(code=409, body=b"{}", retry_after=None)
        self.states[name] = self.states[name].with_status(patch["/status"])
        version = str(int(known.resource_version) + 1)
        return {"metadata": {"uid": known.uid, "resourceVersion": version}}

    def _create_child(self, plural: str, body: Json) -> Json:
        if body["metadata"]["name"] == SHARED_NAME:
            return body  # made again by every operator, and no job's
        (owner,) = body["metadata"]["ownerReferences"]
        state = self.states[owner["name"]]
        child = f"{plural}/{body['metadata']['name']}"
        if child in state.children:
            raise errors.from_answer(code=409, body=ALREADY, retry_after=None)
        children = tuple(sorted({*state.children, child}))
        self.states[owner["name"]] = state._replace(children=children)
        return body

    def _create_pod(self, pod: Json, *, shown: bool) -> Json:
        name, job = pod["metadata"]["name"], pod["metadata"]["labels"]["drumline.dev/job"]
        if name in dict(self.states[job].pods):
            raise errors.from_answer(code=409, body=ALREADY, retry_after=None)
        pod["metadata"] |= {"uid": name, "namespace": NAMESPACE}
        stored = {**pod, "spec": _slim(pod["spec"]), "status": {"phase": "Pending"}}
        self._store(job, None, stored, shown=shown)
        return {"metadata": {"uid": name, "resourceVersion": "1"}}

    def _delete_pods(self, request: Request, body: Json, *, shown: bool) -> None:
        uid = body.get("preconditions", {}).get("uid")
        chosen = request.query.get("labelSelector", "")
        job_uid, _, rest = chosen.partition("=")[2].partition(",")
        generations = rest.partition(" in (")[2].rstrip(")").split(",")
        for job, state in list(self.states.items()):
            for _, text in state.pods:
                pod = json.loads(text)
                labels = pod["metadata"]["labels"]
                by_label = chosen and labels["drumline.dev/job-uid"] == job_uid
                of_these = not rest or labels["drumline.dev/generation"] in generations
                if pod["metadata"]["uid"] == uid or (by_label and of_these):
                    self._delete(job, pod, shown=shown)

    def _delete(self, job: str, pod: Json, *, shown: bool) -> None:
        """A pod that runs leaves when its kubelet says so."""
        gone: Json | None = None
        if pod["status"]["phase"] == "Running":
            metadata = {**pod["metadata"], "deletionTimestamp": timestamp(NOW)}
            gone = {**pod, "metadata": metadata}
        self._store(job, pod, gone, shown=shown)

    def _store(self, job: str, old: Json | None, new: Json | None, *, shown: bool) -> None:
        name = (new or old or {})["metadata"]["name"]
        self.states[job] = self.states[job].with_pod(name, new)
        if shown:
            self.cache.on_pod(_pod_view(old), _pod_view(new))


class _Operator:
    """An operator that has just read the cluster."""

    def __init__(
        self,
        states: States,
        *,
        quota: int,
        autoscaler: TinyAutoscaler | None,
        gated: Sequence[Json] = (),
    ) -> None:
        self.autoscaler = autoscaler
        self.api = _TinyApi(dict(states))
        self.cache = self.api.cache = ClusterCache(
            nodes=NodeCache(clock=lambda: NOW), admits_workloads=bool(gated)
        )
        _fill(self.cache, states, quota=quota, autoscaler=autoscaler)
        for pod in gated:
            self.cache.on_pod(None, _pod_view(pod))
        self.writer = StatusWriter(
            client=self.api,
            jobs=self.cache.jobs,
            wake_scheduler=lambda: None,
            clock=lambda: NOW,
            wall=lambda: NOW,
        )
        self.events = JobEvents(EventRecorder(self.api, instance="tiny"))

    def take(self, work: Coroutine[Any, Any, list[str]]) -> Taken:
        """Let it act."""

        async def run() -> list[str]:
            serving = asyncio.ensure_future(self.api.serve())
            try:
                return await work
            finally:
                serving.cancel()

        wrong = LOOP.run_until_complete(run())
        cut = tuple(dict(states) for states in self.api.cut)
        released = frozenset(released_by(self.api.pod_patches))
        return Taken(after=self.api.states, cut=cut, wrong=tuple(wrong), released=released)

    async def cycle(self) -> list[str]:
        """One cycle of the scheduler; returns what is wrong with its decisions."""
        reconciler = self._reconciler()
        committer = Committer(
            writer=self.writer,
            pods=SETTINGS,
            epoch=EPOCH,
            preemption_seconds=300,
            metrics=METRICS,
            job_events=self.events,
            enqueue=lambda _: None,
            priority_of=self.cache.scheduling.priority_of,
            share_of=self.cache.share_of,
            signing_key=KEYS.current_id,
            settled_status=reconciler.settled_status,
            announce=reconciler.announce,
            starts=CheckedStarts(check=may_start, scheduling=self.cache.scheduling),
            unwritten=UnwrittenStatuses(
                backoffs=self.cache.scheduling.backoffs, job_events=self.events
            ),
            foreign=ForeignEvictions(
                client=self.api,
                pools=(),
                is_tainted=lambda _: False,
                stays=lambda _uid, _until: None,
                members=lambda _: (),
                workloads=self.cache.workloads,
                suspension=suspension(self.api),
            ),
        )
        await committer.withdraw(self.cache.jobs.all(), now=NOW)
        snapshot = self.cache.scheduling.snapshot(now=NOW)
        requests = None
        if self.autoscaler is not None:
            requests = TinyNodeRequests(self.autoscaler, state=self.cache)
            snapshot = await requests.offered(snapshot)
        pending = tuple(self.cache.scheduling.pending())
        jobs = {job.uid: job for job in self.cache.jobs.all()}
        policy = Policy()
        decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=policy, now=NOW))
        if requests is not None:
            await requests.take(decisions, snapshot=snapshot, pending=pending)
        ours = decisions
        if self.cache.workloads is not None:
            ours = await admit(decisions, pending=pending, cache=self.cache, api=self.api)
        await committer.carry_out(ours, jobs=jobs, now=NOW)
        return list(
            violations(
                snapshot=snapshot, pending=pending, decisions=decisions, policy=policy, now=NOW
            )
        )

    async def reconcile(self, name: str) -> list[str]:
        """One job, until it says that nothing is left to do."""
        reconciler = self._reconciler()
        for _ in range(8):
            try:
                await reconciler.reconcile(f"{NAMESPACE}/{name}")
            except RetryLater:
                continue
            return []
        return [f"{name} does not settle"]

    def _reconciler(self) -> Reconciler:
        agents = AgentClient()
        return Reconciler(
            writer=self.writer,
            executor=Executor(
                client=self.api,
                agents=agents,
                deliveries=Deliveries(enqueue_after=lambda _, __: None),
                pods=SETTINGS,
                signing_keys=KEYS,
                shared=SharedObjects(
                    client=self.api, settings=SETTINGS, pods=tuple, clock=lambda: NOW
                ),
                gpus_of=lambda pool: PoolGpus.of(some(self.cache.pools.get(pool))),
                pods_of=lambda job: self.cache.pods.of(job.namespace, job.uid),
                clock=lambda: NOW,
                monotonic=lambda: NOW,
                is_stuck=self.cache.nodes.is_stuck,
            ),
            watch=AgentWatch(agents=agents, enqueue=lambda _: None, clock=lambda: NOW),
            state=self.cache,
            epoch=EPOCH,
            progress_seconds=60,
            metrics=METRICS,
            ledger=IncidentCounters(METRICS),
            job_events=self.events,
            clock=lambda: NOW,
        )


def some(spec: GpuPoolSpec | None) -> GpuPoolSpec:
    assert spec is not None
    return spec


def _slim(spec: Json) -> Json:
    """What an operator reads of a pod that is there."""
    containers = [
        {key: container[key] for key in ("name", "resources") if key in container}
        for container in spec["containers"]
    ]
    return {"nodeName": spec["nodeName"], "containers": containers}


LOOP = asyncio.new_event_loop()
"""Of all steps: one costs more than a step."""


def _fill(
    cache: ClusterCache, states: States, *, quota: int, autoscaler: TinyAutoscaler | None
) -> None:
    pool, queue, high, nodes = (
        _surroundings(quota)
        if autoscaler is None
        else _decoded(_surrounding_objects(quota, autoscaler))
    )
    cache.on_pool(None, pool)
    cache.on_queue(None, queue)
    cache.on_priority_class(None, high)
    for node in nodes:
        cache.nodes.on_node(None, node)
    for name, state in states.items():
        problem = cache.on_job(None, _job_view(state.job))
        assert problem is None, (name, problem)
        for _, text in state.pods:
            cache.on_pod(None, _view_of_pod(text))


# --- what the operator's client would have decoded; views never change -------------------------


def cluster_objects(
    states: States,
    *,
    quota: int,
    autoscaler: TinyAutoscaler | None = None,
    gated: Sequence[Json] = (),
) -> list[Json]:
    """All objects of such a cluster, as kubectl prints them."""
    ours = {"apiVersion": "drumline.dev/v1alpha1"}
    pool, queue, high, nodes = _surrounding_objects(quota, autoscaler)
    jobs = [{**ours, "kind": "TrainingJob", **json.loads(state.job)} for state in states.values()]
    pods = [json.loads(text) for state in states.values() for _, text in state.pods]
    pods += autoscaler.pods.values() if autoscaler is not None else ()
    pods += gated
    return [
        {**ours, "kind": "GpuPool", **pool},
        {**ours, "kind": "TrainingQueue", **queue},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **high},
        *({"apiVersion": "v1", "kind": "Node", **node} for node in nodes),
        *jobs,
        *({"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods),
    ]


def _surrounding_objects(
    quota: int, autoscaler: TinyAutoscaler | None
) -> tuple[Json, Json, Json, list[Json]]:
    """Pool, queue, the class of important jobs, nodes."""
    fixed: Json = {"uid": "u", "resourceVersion": "1", "generation": 1}
    fixed["creationTimestamp"] = timestamp(NOW)
    pool, queue = (
        {"metadata": {"name": name, **fixed}, "spec": spec}
        for name, spec in {
            "pool": {"nodeSelector": {"type": "kwok"}},
            "queue": {"quotas": [{"gpuPool": "pool", "nominalGpus": quota}]},
        }.items()
    )
    high = {"metadata": {"name": "high", **fixed}, "value": 1000}
    nodes = [{**node, "metadata": {**node["metadata"], **fixed}} for node in NODES]
    if autoscaler is not None:
        spec = {**pool["spec"], "autoscaling": autoscaler.spec}
        pool = {**pool, "spec": spec, "status": autoscaler.status}
        new = (fake_node(number, gpus=8, nodes_per_rack=3) for number in range(autoscaler.nodes))
        nodes = [{**node, "metadata": {**node["metadata"], **fixed}} for node in new]
    return pool, queue, high, nodes


@cache
def _surroundings(quota: int) -> tuple[Any, Any, Any, list[Any]]:
    """The same, decoded."""
    return _decoded(_surrounding_objects(quota, None))


def _decoded(objects: tuple[Json, Json, Json, list[Json]]) -> tuple[Any, Any, Any, list[Any]]:
    pool, queue, high, nodes = objects
    return (
        codec.custom_object(text_of(pool).encode()),
        codec.custom_object(text_of(queue).encode()),
        codec.priority_class(text_of(high).encode()),
        [codec.node(text_of(node).encode()) for node in nodes],
    )


@cache
def _job_view(text: str) -> Any:
    job = json.loads(text)
    job["metadata"]["resourceVersion"] = "1"
    return codec.training_job(text_of(job).encode())


@cache
def _view_of_pod(text: str) -> Any:
    pod = json.loads(text)
    pod["metadata"]["resourceVersion"] = "1"
    return codec.pod(text_of(pod).encode())


def _pod_view(pod: Json | None) -> Any:
    return None if pod is None else _view_of_pod(text_of(pod))
