"""The load of the control-plane bench: jobs, the same pods already bound, and who watches them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, NotFound
from drumline.kube.informer import Informer, Selection
from drumline.kube.kinds import PODS, TRAINING_JOBS, Resource
from drumline.kube.store import Change, Event
from drumline.kube.views import PodView
from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from tests.builders import pod_manifest

NAMESPACE = "bench"
Json = dict[str, Any]
IDLE_SHARE = 0.12
"""Of one core: a little more than the leases of 500 fake nodes take all the time."""
CLEAR_SECONDS = 120.0
LONGEST_ROUND_SECONDS = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")


def job_manifest(name: str, *, nodes: int, gpus: int, **spec: Any) -> Json:
    """A gang of `nodes` pods with `gpus` GPUs each, of a template of one's own."""
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**job_spec(nodes=nodes, gpus=gpus), **spec},
    }


def with_trainer(job: Json) -> Json:
    """Give a gang the bundled trainer; its batch splits evenly over its ranks.

    Fake pods have no agents, and none is waited for.
    """
    del job["spec"]["template"]
    job["spec"]["trainer"] = {"globalBatchSize": job["spec"]["nodes"] * job["spec"]["gpusPerNode"]}
    return job


def job_spec(*, nodes: int, gpus: int) -> Json:
    """Its spec."""
    return {
        "queue": "bench",
        "nodes": nodes,
        "gpusPerNode": gpus,
        "template": {"image": "any:1", "command": ["sleep", "infinity"]},
    }


def bound_pods(name: str, node_names: list[str], *, gpus: int) -> list[Json]:
    """The very pods the operator would make of this gang, for a client to create by itself."""
    job = Job(
        namespace=NAMESPACE,
        name=name,
        uid="00000000-0000-0000-0000-000000000000",
        resource_version="1",
        object_generation=1,
        created_at=0.0,
        spec=TrainingJobSpec.model_validate(job_spec(nodes=len(node_names), gpus=gpus)),
        status=TrainingJobStatus(),
    )
    status = transitions.admitted(
        job, pool="bench", nodes=node_names, epoch=1, image="any:1", priority=0, now=0.0
    )
    placed = Job(
        **{field: getattr(job, field) for field in Job.__slots__ if field != "status"},
        status=status,
    )
    settings = PodSettings(trainer_image="trainer:1", join_image="operator:1")
    pods = [
        pod_manifest(placed, index=i, gpus=PoolGpus(resource="nvidia.com/gpu"), settings=settings)
        for i in range(len(node_names))
    ]
    for pod in pods:
        del pod["metadata"]["ownerReferences"]  # its owner does not exist
    return pods


@dataclass(slots=True)
class BoundPods:
    """Counts bound pods as a watch shows them."""

    wanted: int = 0
    since: int = 0
    """Pods bound since the clock was started."""
    names: set[str] = field(default_factory=set[str])
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    last_at: float = 0.0

    def take(self, event: Event[PodView]) -> None:
        """One change of a pod."""
        if event.change is Change.DELETED:
            self.names.discard(event.view.name)
            if not self.names:
                self.empty.set()
        elif event.view.node_name and event.view.name not in self.names:
            self.names.add(event.view.name)
            self.empty.clear()
            self.last_at = time.perf_counter()
            self.since += 1
            if self.since >= self.wanted:
                self.reached.set()

    def begin(self, wanted: int) -> None:
        """Wait for so many more pods from now on."""
        self.wanted, self.since = wanted, 0
        self.reached.clear()


@asynccontextmanager
async def watching(client: KubeClient) -> AsyncGenerator[BoundPods]:
    """Watch the bench's pods."""
    informer = Informer(client, PODS, decode=codec.pod, selection=Selection(namespace=NAMESPACE))
    bound = BoundPods()
    informer.subscribe(bound.take)
    task = asyncio.create_task(informer.run())
    await informer.wait_synced()
    try:
        yield bound
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One run: seconds to the last bound pod, and the CPU seconds each process took meanwhile."""

    seconds: float
    cpu_seconds: dict[str, float]


class StalledError(RuntimeError):
    """Pods were not bound in time; the message says how many, and how the jobs stand."""


async def all_bound(
    client: KubeClient, bound: BoundPods, *, seconds: float, kind: Resource = TRAINING_JOBS
) -> None:
    """Wait until as many pods are bound as `begin` asked for.

    Args:
        client: reads the jobs if pods are missing.
        bound: the pods.
        seconds: longest wait.
        kind: the jobs.

    Raises:
        StalledError: they were not within `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            await bound.reached.wait()
    except TimeoutError:
        raise StalledError(
            f"{bound.since} of {bound.wanted} pods were bound after {seconds:g} s;"
            f" {await jobs_seen(client, kind)}"
        ) from None


async def jobs_seen(client: KubeClient, resource: Resource = TRAINING_JOBS) -> str:
    """Return the jobs of the bench that have not ended, by phase and reason: see `stalled`."""
    stored = await reads.list_all(client, resource, namespace=NAMESPACE)
    views = [codec.custom_object(raw) for raw in stored]
    return stalled((view.name, view.status) for view in views if not has_ended(view.status))


def has_ended(status: Mapping[str, Any]) -> bool:
    """Return whether a TrainingJob, a batch Job or a Workload of Kueue with this status is over."""
    conditions: Iterable[Json] = status.get("conditions") or ()
    ended = {"Complete", "Failed", "Finished"}
    return bool(status.get("finishedAt")) or any(
        condition.get("type") in ended and condition.get("status") == "True"
        for condition in conditions
    )


def stalled(jobs: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the number of jobs per phase and reason, each with one job and its message.

    Args:
        jobs: name and status of each job.
    """
    kinds: dict[str, list[str]] = {}
    for name, status in jobs:
        # kinds of peers have a state or conditions, whose last one is the newest
        conditions: list[Json] = status.get("conditions") or [{}]
        newest, state = conditions[-1], status.get("state") or Json()
        phase: str = status.get("phase") or state.get("phase") or newest.get("type") or "new"
        reason: str = status.get("reason") or newest.get("reason") or ""
        kind = f"{phase} {reason}".rstrip()
        text = f"{name}: {status.get('message') or newest.get('message') or 'no message'}"
        kinds.setdefault(kind, []).append(text)
    most_first = sorted(kinds.items(), key=lambda item: -len(item[1]))
    parts = [f"{len(texts)} {kind}, such as {texts[0]}" for kind, texts in most_first]
    return "; ".join(parts) or "no job is left"


def of_round(manifests: list[Json], number: int) -> list[Json]:
    """Give the jobs of a round names of their own.

    KWOK deletes pods by name, half a minute late on a slow machine: with the names of the last
    round it would delete pods of this one.
    """
    for manifest in manifests:
        manifest["metadata"]["name"] += f"-r{number}"
    return manifests


def raw_name(nodes: int, number: int) -> str:
    """Return the name of the gang of a raw round, which no other round of a run has."""
    return f"raw-{nodes}-r{number}"


async def timed(
    client: KubeClient,
    bound: BoundPods,
    submit: Callable[[], Awaitable[Any]],
    *,
    pods: int,
    processes: dict[str, int],
    kind: Resource = TRAINING_JOBS,
    seconds: float = LONGEST_ROUND_SECONDS,
) -> Timed:
    """Submit, wait until all pods are seen bound.

    Args:
        client: reads the jobs if pods are missing.
        bound: the pods.
        submit: creates the jobs.
        pods: how many pods have to be bound.
        processes: process ids by name.
        kind: the jobs.
        seconds: longest wait.

    Raises:
        StalledError: the pods were not bound within `seconds`.
    """
    bound.begin(pods)
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    started = time.perf_counter()
    await submit()
    await all_bound(client, bound, seconds=seconds, kind=kind)
    took = bound.last_at - started
    after = {name: cpu_seconds(pid) for name, pid in processes.items()}
    return Timed(seconds=took, cpu_seconds={n: after[n] - before[n] for n in processes})


async def settled(pid: int, *, within_seconds: float = 60.0) -> None:
    """Return once a process has been nearly idle for two seconds (or the time is over).

    Fake nodes that become Ready and pods that are being deleted would count in the next run.
    """
    quiet, before = 0, cpu_seconds(pid)
    for _ in range(int(2 * within_seconds)):
        await asyncio.sleep(0.5)
        now = cpu_seconds(pid)
        quiet = quiet + 1 if now - before < IDLE_SHARE * 0.5 else 0
        before = now
        if quiet >= 4:
            return


async def submit_jobs(client: KubeClient, manifests: list[Json]) -> None:
    """Create all jobs at once."""
    await submit(client, TRAINING_JOBS, manifests)


async def submit_pods(client: KubeClient, pods: list[Json]) -> None:
    """Create all pods at once, already bound: the raw limit."""
    await submit(client, PODS, pods)


async def submit(client: KubeClient, resource: Resource, manifests: list[Json]) -> None:
    """Create all objects of a kind at once.

    Raises:
        KubeError: the API server refused one.
    """
    outcomes = await writes.create_many(client, resource, bodies=manifests, namespace=NAMESPACE)
    for outcome in outcomes:
        # an object that exists was created by an earlier attempt, whose answer came too late
        if isinstance(outcome, Exception) and not isinstance(outcome, AlreadyExists):
            raise outcome


async def clear(
    client: KubeClient, bound: BoundPods, kinds: Iterable[Resource] = (TRAINING_JOBS,)
) -> None:
    """Delete the objects of these kinds and all pods, and wait until the pods are gone.

    Raises:
        StalledError: pods are left after two minutes.
    """
    for kind in kinds:
        stored = await reads.list_all(client, kind, namespace=NAMESPACE)
        names = [codec.custom_object(raw).name for raw in stored]
        await _delete_all(client, kind, names, grace_seconds=None)
    deadline = time.monotonic() + CLEAR_SECONDS
    # a controller that has not heard of the end of its job may make another pod
    while left := await reads.list_all(client, PODS, namespace=NAMESPACE):
        pods = [codec.pod(raw) for raw in left]
        if time.monotonic() > deadline:
            shown = ", ".join(f"{pod.name} on {pod.node_name or 'no node'}" for pod in pods[:3])
            raise StalledError(
                f"{len(pods)} pods are left {CLEAR_SECONDS:g} s after their deletion, such as"
                f" {shown}; {await jobs_seen(client)}"
            )
        await _delete_all(client, PODS, [pod.name for pod in pods], grace_seconds=0)
        await asyncio.sleep(0.2)
    while bound.names:  # the watch lags behind the list
        await bound.empty.wait()


async def _delete_all(
    client: KubeClient, resource: Resource, names: list[str], *, grace_seconds: int | None
) -> None:
    """One by one but all at once: a collection of hundreds outlasts one write's deadline."""

    async def delete(name: str) -> None:
        with suppress(NotFound):
            await writes.delete(
                client,
                resource,
                name=name,
                uid=None,
                namespace=NAMESPACE,
                grace_seconds=grace_seconds,
            )

    await asyncio.gather(*map(delete, names))


def cpu_seconds(pid: int) -> float:
    """User and system time a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mebibytes(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
