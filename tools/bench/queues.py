"""Kueue's scalability test (test/performance/scheduler, baseline): 15,000 jobs in 30 queues.

There a job is a Workload without pods, and the runner marks it finished some time after it was
admitted. A TrainingJob that is admitted always has pods (with `managedBy` nobody admits it), so
each is one pod of as many GPUs as the workload has units, on nodes that are never the limit, and
the bench ends the pod so long after it runs. What is measured is thus more than Kueue's: a
pod is created, started and ended for every job.

`make bench WHAT=queues`; `ARGS="--part 2"` submits two in a hundred of each class for a look.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Final

from drumline.kube import codec, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, KubeError
from drumline.kube.informer import Informer, Selection
from drumline.kube.kinds import PODS, TRAINING_JOBS, Resource
from drumline.kube.store import Change, Event
from drumline.kube.views import ObjectView, PodPhase, PodView
from tools.bench import load
from tools.bench.engine.virtual import SHAPES, Class
from tools.bench.report import Row, publish
from tools.bench.stand import Stand, cpu_rows, custom, furnished, priority_class, standing
from tools.cluster import Cluster, create_fake_nodes

BASELINE: Final = SHAPES["baseline"]
NODES: Final = 60
GPUS_OF_A_NODE: Final = 60
"""Together six times the quotas, so that only quotas keep a job waiting."""
LONGEST_SECONDS: Final = 1500
SAY_SECONDS: Final = 10
Json = dict[str, Any]


def main() -> None:
    """Start a cluster, measure, publish, remove it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.queues", description=__doc__)
    parser.add_argument("--part", type=int, default=100, help="of each class, in a hundred")
    part: int = parser.parse_args().part
    with furnished("queues", setting()) as cluster, tempfile.TemporaryDirectory() as folder:
        create_fake_nodes(cluster.kubeconfig, count=NODES, gpus=GPUS_OF_A_NODE)
        rows = asyncio.run(_measure(cluster, Path(folder), part=part))
        publish("queues", rows, command=f"--part {part}")


def setting() -> list[Json]:
    """Queues in cohorts that lend and borrow, and a priority for each class."""
    objects = [priority_class(kind.name, kind.priority) for kind in BASELINE.classes]
    for cohort in range(BASELINE.cohorts):
        parent = f"cohort-{cohort}"
        nothing = [{"gpuPool": "bench", "nominalGpus": 0}]
        objects.append(custom("TrainingQueue", parent, {"quotas": nothing}))
        quota = {
            "gpuPool": "bench",
            "nominalGpus": BASELINE.nominal,
            "borrowingLimitGpus": BASELINE.borrowing,
        }
        objects += [
            custom("TrainingQueue", f"{parent}-{number}", {"parent": parent, "quotas": [quota]})
            for number in range(BASELINE.queues)
        ]
    return objects


@dataclass(slots=True, kw_only=True)
class Runner:
    """Submits jobs as the generator says, ends their pods, and notes what became of them."""

    client: KubeClient
    jobs: int
    kind: Resource = TRAINING_JOBS
    make: Callable[[Class, str, str], Json]
    """A job of a class, with the name of its queue and its own."""
    tag: str = ""
    """Ends every name: KWOK deletes pods by name, late, and so those of a later run."""
    submitted: dict[str, float] = field(default_factory=dict[str, float])
    admitted: dict[str, float] = field(default_factory=dict[str, float])
    ended: set[str] = field(default_factory=set[str])
    all_ended: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[str] = field(default_factory=set[str])
    """Names of pods that are timed."""
    tasks: asyncio.TaskGroup

    def take_pod(self, event: Event[PodView]) -> None:
        """A pod that runs ends after the time of its class.

        Not one that is only bound: KWOK's Running could come after the bench's Succeeded.
        """
        pod = event.view
        if event.change is Change.DELETED or not pod.node_name:
            return
        job = pod.name.rsplit("-", 2)[0]
        self.admitted.setdefault(job, time.perf_counter())
        if pod.phase != PodPhase.RUNNING or pod.name in self.running:
            return
        self.running.add(pod.name)
        self.tasks.create_task(self._end(pod.name, after=class_of(job).seconds))

    def take_job(self, event: Event[ObjectView]) -> None:
        """Count jobs that are over."""
        if event.change is not Change.DELETED and load.has_ended(event.view.status):
            self.ended.add(event.view.name)
            if len(self.ended) >= self.jobs:
                self.all_ended.set()

    async def submit(self, kind: Class, queue: str, *, count: int) -> None:
        """Jobs of one class and queue, one every so often."""
        began = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(began + number * kind.every - time.perf_counter())
            name = f"{kind.name}-{queue.removeprefix('cohort-')}-{number}{self.tag}"
            job = self.make(kind, queue, name)
            self.submitted[name] = time.perf_counter()
            with suppress(AlreadyExists):  # by an earlier attempt, whose answer came too late
                await writes.create(self.client, self.kind, body=job, namespace=load.NAMESPACE)

    async def _end(self, pod: str, *, after: float) -> None:
        await asyncio.sleep(after)
        ended = {"exitCode": 0, "reason": "Completed"}
        container = {
            "name": "main",
            "image": "any:1",
            "imageID": "",
            "restartCount": 0,
            "ready": False,
            "state": {"terminated": ended},
        }
        body = {"status": {"phase": "Succeeded", "containerStatuses": [container]}}
        with suppress(KubeError):  # it was preempted meanwhile
            await writes.merge_patch(
                self.client,
                PODS,
                name=pod,
                body=body,
                namespace=load.NAMESPACE,
                subresource="status",
            )


def class_of(job: str) -> Class:
    """Return the class of a job by its name."""
    return next(kind for kind in BASELINE.classes if job.startswith(kind.name))


def training_job(kind: Class, queue: str, name: str) -> Json:
    """Return one pod of as many GPUs as the class has units."""
    return load.job_manifest(
        name, nodes=1, gpus=kind.units, queue=queue, priorityClassName=kind.name
    )


def queue_names() -> list[str]:
    """Return the queues of the baseline."""
    return [f"cohort-{c}-{q}" for c in range(BASELINE.cohorts) for q in range(BASELINE.queues)]


def counts_of(part: int) -> dict[Class, int]:
    """Return the number of jobs of each class in each queue: `part` of a hundred."""
    return {kind: max(1, kind.count * part // 100) for kind in BASELINE.classes}


def jobs_of(part: int) -> int:
    """Return the number of all jobs."""
    return len(queue_names()) * sum(counts_of(part).values())


async def drive(runner: Runner, *, part: int) -> float:
    """Submit all jobs, wait until they are over, and return the seconds that it took.

    Raises:
        StalledError: they were not within 25 minutes.
    """
    here = Selection(namespace=load.NAMESPACE)
    jobs = Informer(runner.client, runner.kind, decode=codec.custom_object, selection=here)
    pods = Informer(runner.client, PODS, decode=codec.pod, selection=here)
    jobs.subscribe(runner.take_job)
    pods.subscribe(runner.take_pod)
    watches = [asyncio.create_task(jobs.run()), asyncio.create_task(pods.run())]
    began = time.perf_counter()
    for queue in queue_names():
        for kind, count in counts_of(part).items():
            runner.tasks.create_task(runner.submit(kind, queue, count=count))
    try:
        while not runner.all_ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(runner.all_ended.wait(), SAY_SECONDS)
            counted = f"of {runner.jobs} jobs {len(runner.submitted)} were submitted"
            counted += f", {len(runner.admitted)} placed"
            counted += f", {len(runner.ended)} are over"
            print(counted, flush=True)
            if time.perf_counter() - began > LONGEST_SECONDS:
                seen = await load.jobs_seen(runner.client, runner.kind)
                raise load.StalledError(f"{counted} after {LONGEST_SECONDS} s; {seen}")
        return time.perf_counter() - began
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _measure(cluster: Cluster, folder: Path, *, part: int) -> list[Row]:
    async with standing(cluster, folder) as stand, asyncio.TaskGroup() as tasks:
        await stand.start_operator()
        runner = Runner(client=stand.client, jobs=jobs_of(part), tasks=tasks, make=training_job)
        before = stand.cpu_seconds()
        seconds = await drive(runner, part=part)
        return _rows(stand, runner, before=before, seconds=seconds, is_whole=part == 100)


def _rows(
    stand: Stand, runner: Runner, *, before: dict[str, float], seconds: float, is_whole: bool
) -> list[Row]:
    waits: dict[str, list[float]] = defaultdict(list)
    for job, moment in runner.admitted.items():
        waits[job.partition("-")[0]].append(moment - runner.submitted[job])
    return [
        Row(
            name=f"{runner.jobs} jobs of one pod in 30 queues, all over",
            value=seconds,
            unit="s",
            goal="<= 130" if is_whole else "",
            met=seconds <= 130 if is_whole else None,
            peer="Kueue 351-374 s, without pods" if is_whole else "",
        ),
        *(
            Row(name=f"  mean wait of {name} jobs", value=mean(values), unit="s")
            for name, values in waits.items()
        ),
        *cpu_rows("until all are over", before, stand.cpu_seconds()),
        Row(
            name="operator resident memory",
            value=load.resident_mebibytes(stand.processes["operator"]),
            unit="MiB",
        ),
    ]


if __name__ == "__main__":
    main()
