"""Kueue's own performance baseline on both sides: 15,000 jobs in 30 queues.

`pods`: TrainingJobs beside batch Jobs, and every job has a pod that runs and ends. `admission`:
neither side has pods. Kueue gets Workloads, as in its test, and our operator creates no pods
(`podless`). The bench ends each job once its run time is over, and finishes evictions.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, Final

from drumline.kube import writes
from drumline.kube.errors import KubeError
from drumline.kube.kinds import JOBS, TRAINING_JOBS, Resource
from drumline.kube.store import Change, Event
from drumline.kube.views import ObjectView, PodView
from tests.integration.operator.kueue.program import VERSION
from tools.bench import load
from tools.bench.engine.virtual import Class
from tools.bench.peers import objects, programs
from tools.bench.peers.objects import Json
from tools.bench.peers.ratios import API_SERVER, OURS
from tools.bench.queues import (
    BASELINE,
    GPUS_OF_A_NODE,
    NODES,
    Runner,
    class_of,
    drive,
    jobs_of,
    queue_names,
    setting,
    training_job,
)
from tools.bench.report import Row
from tools.bench.stand import Stand, furnished, standing
from tools.cluster import Cluster, create_fake_nodes

PODS: Final = "pods"
ADMISSION: Final = "admission"
MODES: Final = (PODS, ADMISSION)
_KUEUE: Final = f"Kueue {VERSION}"
_FLAVOR: Final = "bench"


def measure_all(modes: list[str], *, part: int) -> list[Row]:
    """Run the baseline in these modes, our side first in each.

    Raises:
        StalledError: jobs of a side do not end.
    """
    rows: list[Row] = []
    for mode in modes:
        took = {OURS: _measure(OURS, mode, part=part), _KUEUE: _measure(_KUEUE, mode, part=part)}
        rows += _rows(mode, took, part=part)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Times of all jobs of one side."""

    seconds: float
    mean_wait: float
    cpu_seconds: dict[str, float]


def _rows(mode: str, took: Mapping[str, Took], *, part: int) -> Iterator[Row]:
    jobs = jobs_of(part)
    kind = "with pods" if mode == PODS else "admission alone, without pods"
    yield Row(name=f"Kueue's baseline, {jobs} jobs in 30 queues, {kind}", value=2, unit="sides")
    for side, figure in took.items():
        ratio = took[OURS].seconds / figure.seconds
        beside = "" if side == OURS else f"{ratio:.2f} x"
        yield Row(name=f"  {side}: all over", value=figure.seconds, unit="s", peer=beside)
        yield Row(name="    jobs per second", value=jobs / figure.seconds, unit="/s")
        yield Row(name="    mean wait", value=figure.mean_wait, unit="s")
        for process, seconds in figure.cpu_seconds.items():
            if process == API_SERVER or seconds >= 0.1 * figure.seconds:
                yield Row(name=f"    CPU of {process}", value=seconds, unit="s")


def kueue_setting() -> list[Json]:
    """Return the cohorts, queues and priorities of the baseline for Kueue."""
    result = [objects.new(objects.FLAVORS, _FLAVOR, spec={"nodeLabels": {"type": "kwok"}})]
    result += objects.kueue_priorities({kind.name: kind.priority for kind in BASELINE.classes})
    for name in queue_names():
        result += objects.kueue_queue(
            name,
            flavor=_FLAVOR,
            gpus=BASELINE.nominal,
            borrowingLimit=BASELINE.borrowing,
            cohortName=name.rpartition("-")[0],
        )
    return result


def _gang(kind: Class, name: str) -> objects.Gang:
    return objects.Gang(name=name, pods=1, gpus=kind.units, in_one_rack=False, priority=kind.name)


def batch_job(kind: Class, queue: str, name: str) -> Json:
    """Return a job of Kueue's side with a pod."""
    return objects.kueue_job(_gang(kind, name), queue=queue)


def workload(kind: Class, queue: str, name: str) -> Json:
    """Return a Workload as Kueue's generator makes it: no pods follow it."""
    gang = objects.Gang(name=name, pods=1, gpus=kind.units, in_one_rack=False, priority="")
    pods = {"name": "main", "count": 1, "template": {"spec": objects.pod_spec(gang)}}
    spec = {"queueName": queue, "priority": kind.priority, "podSets": [pods], "active": True}
    return objects.new(objects.WORKLOADS, name, spec=spec)


def our_admission(status: Json) -> str:
    """Return what names the present admission of a TrainingJob, or an empty string."""
    holds = status.get("assignment") and not status.get("disruption")
    return str(status.get("generation")) if holds else ""


def kueue_admission(status: Json) -> str:
    """Return what names the present admission of a Workload, or an empty string."""
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    admitted = conditions.get("Admitted", {})
    return admitted["lastTransitionTime"] if admitted.get("status") == "True" else ""


def our_end(_: Json) -> Json:
    """Return the status of a TrainingJob that ended."""
    return {"phase": "Succeeded", "reason": "Completed", "finishedAt": _now()}


def kueue_end(status: Json) -> Json:
    """Return the status of a Workload that ended."""
    return {"conditions": _with_conditions(status, Finished="True")}


def kueue_release(status: Json) -> Json | None:
    """Return the status of an evicted Workload whose pods are gone, or None if it holds nothing."""
    states = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if states.get("Evicted") != "True" or states.get("QuotaReserved") != "True":
        return None
    conditions = _with_conditions(status, QuotaReserved="False", Admitted="False")
    return {"admission": None, "conditions": conditions}


def _with_conditions(status: Json, **states: str) -> list[Json]:
    """Return the conditions of a status with these changed, as a merge patch replaces lists."""
    kept = [each for each in status.get("conditions") or () if each["type"] not in states]
    changed = [
        {
            "type": name,
            "status": state,
            "reason": "Pending" if state == "False" else "ByTest",
            "message": "by the bench",
            "lastTransitionTime": _now(),
        }
        for name, state in states.items()
    ]
    return [*kept, *changed]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, kw_only=True)
class Admitting(Runner):
    """Ends jobs without pods once their run time since admission is over."""

    admission: Callable[[Json], str]
    end: Callable[[Json], Json]
    release: Callable[[Json], Json | None] = lambda _: None
    latest: dict[str, ObjectView] = field(default_factory=dict[str, ObjectView])
    held: dict[str, str] = field(default_factory=dict[str, str])

    def take_pod(self, event: Event[PodView]) -> None:
        """Ignore pods: nobody creates one."""

    def take_job(self, event: Event[ObjectView]) -> None:
        """Note an admission, and end it after the time of its class."""
        Runner.take_job(self, event)
        job = event.view
        if event.change is Change.DELETED or job.name in self.ended:
            return
        self.latest[job.name] = job
        released = self.release(job.status)
        if released is not None:
            self.tasks.create_task(self._write(job, released))
        admission = self.admission(job.status)
        if admission and self.held.get(job.name) != admission:
            self.admitted.setdefault(job.name, perf_counter())
            after = class_of(job.name).seconds
            self.tasks.create_task(self._end_later(job.name, admission, after=after))
        self.held[job.name] = admission

    async def _end_later(self, name: str, admission: str, *, after: float) -> None:
        await asyncio.sleep(after)
        while self.held[name] == admission and name not in self.ended:
            job = self.latest[name]
            if self.release(job.status) is not None:
                return  # it was evicted
            if await self._write(job, self.end(job.status)):
                return
            await asyncio.sleep(0.02)  # a newer version comes by the watch

    async def _write(self, job: ObjectView, status: Json) -> bool:
        """Patch the status of this version of an object; whether it was still the newest."""
        body: dict[str, Any] = {
            "metadata": {"resourceVersion": job.resource_version},
            "status": status,
        }
        with suppress(KubeError):
            await writes.merge_patch(
                self.client,
                self.kind,
                name=job.name,
                body=body,
                namespace=load.NAMESPACE,
                subresource="status",
            )
            return True
        return False


def _measure(side: str, mode: str, *, part: int) -> Took:
    """Run one side on a control plane of its own: 15,000 jobs stay in it."""
    with (
        furnished("baseline", setting(), completes_jobs=False) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        create_fake_nodes(cluster.kubeconfig, count=NODES, gpus=GPUS_OF_A_NODE)
        print(f"{side}, {mode}", flush=True)
        return asyncio.run(_drive(cluster, Path(folder), side, mode, part=part))


async def _drive(cluster: Cluster, folder: Path, side: str, mode: str, *, part: int) -> Took:
    program = ("tools.bench.peers.podless",) if mode == ADMISSION else ("drumline",)
    async with (
        standing(cluster, folder, program=program) as stand,
        _running(side, stand, cluster, folder),
        asyncio.TaskGroup() as tasks,
    ):
        runner = _runner(side, mode, stand, tasks, jobs=jobs_of(part))
        where = programs.Field(cluster=cluster, stand=stand, nodes=NODES, folder=folder)
        await programs.settled(where)
        processes = where.processes
        before = {name: load.cpu_seconds(pid) for name, pid in processes.items()}
        seconds = await drive(runner, part=part)
        after = {name: load.cpu_seconds(pid) for name, pid in processes.items()}
    waits = [moment - runner.submitted[job] for job, moment in runner.admitted.items()]
    return Took(
        seconds=seconds,
        mean_wait=mean(waits),
        cpu_seconds={name: after[name] - before[name] for name in processes},
    )


@asynccontextmanager
async def _running(side: str, stand: Stand, cluster: Cluster, folder: Path) -> AsyncGenerator[None]:
    if side == OURS:
        await stand.start_operator()  # the stand stops it
        yield
        return
    await asyncio.to_thread(programs.install_kueue, cluster, kueue_setting())
    async with programs.kueue_running(cluster, folder):
        yield


def _runner(side: str, mode: str, stand: Stand, tasks: asyncio.TaskGroup, *, jobs: int) -> Runner:
    common: dict[str, Any] = {"client": stand.client, "jobs": jobs, "tasks": tasks}
    kinds: dict[tuple[bool, str], tuple[Resource, Callable[[Class, str, str], Json]]] = {
        (True, PODS): (TRAINING_JOBS, training_job),
        (True, ADMISSION): (TRAINING_JOBS, training_job),
        (False, PODS): (JOBS, batch_job),
        (False, ADMISSION): (objects.WORKLOADS, workload),
    }
    kind, make = kinds[side == OURS, mode]
    if mode == PODS:
        return Runner(**common, kind=kind, make=make)
    if side == OURS:
        return Admitting(**common, kind=kind, make=make, admission=our_admission, end=our_end)
    return Admitting(
        **common,
        kind=kind,
        make=make,
        admission=kueue_admission,
        end=kueue_end,
        release=kueue_release,
    )
