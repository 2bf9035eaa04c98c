"""How far the simulator is off a real control plane: one trace of 15 minutes on both.

`make bench WHAT=simulator_error`. The trace is seeded: 70 jobs of three queues that lend to each
other and take back, on 8 fake nodes (KWOK) with the real etcd, API server and operator. The bench
ends the pods of a job when all of them have run as long as the trace says; a job that is preempted
begins anew, as a template without the client does. The simulator gets the same jobs and queues,
and two constants that were set before any run: half a second from an event to its cycle, one from
a place to a pod that runs. What is compared are makespan, mean wait and GPU-hours.

Half a second decides which of two jobs starts first, and with it the waits of many later jobs. So
does the second of the minute at which the run begins, because the operator updates the work at risk
with each minute of the clock. So the simulated figures are means over `SIMULATIONS` runs. They
begin at different seconds, and each job comes up to `JITTER_SECONDS` later. The range of their mean
waits is shown, too.

It also compares the expected starts in the statuses with the actual starts. All commands show the
expected start of the status (tests/property/test_told_starts.py). Time limits are 1 to 3 times the
run times.

    make bench WHAT=simulator_error ARGS='--jobs 100 --load 3'
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, Final

from drumline.controller.queues.conversion import policy_of, queue_of
from drumline.kube import codec, writes
from drumline.kube.errors import KubeError
from drumline.kube.informer import Informer, Selection
from drumline.kube.kinds import PODS, TRAINING_JOBS
from drumline.kube.store import Change, Event
from drumline.kube.views import PodPhase, PodView, TrainingJobView
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.policy import SchedulingPolicy
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler import Node, Pool, Resources
from drumline_scheduler.forecast.accuracy import Calibration, StartForecast, calibration
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_simulator.cluster import Cluster as SimulatedCluster
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.input import synthetic
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.input.trace import TraceJob
from drumline_simulator.workload import Arrival, Execution
from tools.bench import load
from tools.bench.report import Row, publish
from tools.bench.stand import Stand, custom, furnished, standing
from tools.cluster import Cluster, create_fake_nodes

NODES: Final = 8
NODE_GPUS: Final = 8
JOBS: Final = 70
LOAD: Final = 1.1
SEED: Final = 5
SECONDS_PER_JOB: Final = 500.0 / 70
SHORTEST_SECONDS: Final = 55.0
LONGEST_SECONDS: Final = 210.0
LIMIT_SECONDS: Final = 1200.0
GRACE_SECONDS: Final = 30.0
"""Time for the start and the end of pods. It is added to the limits of jobs."""
GOAL_PERCENT: Final = 10.0
SIMULATIONS: Final = 20
JITTER_SECONDS: Final = 0.5
"""The assumed time from an event to its cycle. No run repeats times better than that."""
STARTS_GOAL_PERCENT: Final = 25.0
QUOTAS: Final = {"large": 32, "long": 16, "small": 16}
EXECUTION: Final = Execution(
    save_seconds=0.0,
    checkpoint_seconds=1e9,  # there are none
    restart_seconds=1.0,
    start_seconds=1.0,
    settle_seconds=0.5,
)
_POD_SLOTS: Final = 110
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What is compared."""

    waits: dict[str, float]
    """Seconds by job."""
    makespan_seconds: float
    gpu_hours: float
    first: Calibration | None = None
    """Errors of the first expected start of each wait. None if the run was simulated."""
    every: Calibration | None = None
    """Errors of all expected starts in statuses."""

    @property
    def mean_wait_seconds(self) -> float:
        """Over all jobs."""
        return mean(self.waits.values())


def main() -> None:
    """Run the trace live, simulate it, print both."""
    parser = argparse.ArgumentParser(prog="simulator_error", description=main.__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument(
        "--load", type=float, default=LOAD, help="requested GPU time / available GPU time"
    )
    chosen = parser.parse_args()
    jobs = trace(chosen.jobs, load=chosen.load)
    with furnished("simulator", _objects()) as cluster, tempfile.TemporaryDirectory() as folder:
        create_fake_nodes(cluster.kubeconfig, count=NODES, gpus=NODE_GPUS)
        live = asyncio.run(_live(cluster, Path(folder), jobs))
    runs = [simulated(jobs, seed=seed) for seed in range(SIMULATIONS)]
    said = averaged(runs)
    for name in sorted(live.waits, key=lambda name: live.waits[name] - said.waits[name]):
        print(f"{name} waited {live.waits[name]:.1f} s, simulated {said.waits[name]:.1f} s")
    spread = spread_rows(runs)
    publish("simulator_error", [*rows(live=live, simulated=said), *spread, *told_rows(live)])


def trace(count: int, *, load: float = LOAD) -> list[TraceJob]:
    """Return a synthetic trace in fast motion. No job is too short or too long to be timed.

    With a higher load, the submission times of the same jobs are closer together.
    """
    jobs = synthetic.trace(
        seed=SEED, jobs=count, gpus=NODES * NODE_GPUS, queues=list(QUOTAS), load=LOAD
    )
    factor = SECONDS_PER_JOB * count / max(job.submit_seconds for job in jobs)
    begins = min(job.submit_seconds for job in jobs)
    jobs = [_in_fast_motion(job, factor=factor, begins=begins) for job in jobs]
    return [replace(job, submit_seconds=job.submit_seconds * LOAD / load) for job in jobs]


def _in_fast_motion(job: TraceJob, *, factor: float, begins: float) -> TraceJob:
    seconds = min(max(factor * job.duration_seconds, SHORTEST_SECONDS), LONGEST_SECONDS)
    asked = (job.max_runtime_seconds or job.duration_seconds) / job.duration_seconds
    return replace(
        job,
        submit_seconds=factor * (job.submit_seconds - begins),
        duration_seconds=seconds,
        max_runtime_seconds=round(asked * seconds + GRACE_SECONDS),
    )


def simulated(jobs: list[TraceJob], *, seed: int) -> Measures:
    """Return what the simulator says of it, for one beginning and one draw of delays."""
    whole = Resources(gpus=NODE_GPUS, pods=_POD_SLOTS)
    cluster = SimulatedCluster(
        nodes=tuple(
            Node(name=f"fake-{number}", pool="bench", allocatable=whole) for number in range(NODES)
        ),
        pools=(Pool(name="bench"),),
        queues=tuple(
            queue_of(name, TrainingQueueSpec.model_validate(spec))
            for name, spec in _queues().items()
        ),
    )
    arrivals = to_arrivals(jobs, cluster=cluster, default_queue="", file="the trace")
    outcome = simulate(
        cluster=cluster,
        arrivals=_shifted(arrivals, seed=seed),
        policy=policy_of(SchedulingPolicy()),
        execution=EXECUTION,
    )
    waits = {
        job.key.partition("/")[2]: job.waited_seconds(outcome.ended_at) for job in outcome.jobs
    }
    return Measures(
        waits=waits,
        makespan_seconds=outcome.ended_at - outcome.began_at,
        gpu_hours=sum(job.gpus * job.held_seconds for job in outcome.jobs) / 3600,
    )


def _shifted(arrivals: Iterable[Arrival], *, seed: int) -> list[Arrival]:
    draw, begins = Random(seed), 60.0 * seed / SIMULATIONS
    return [
        replace(job, gang=replace(job.gang, queued_at=job.gang.queued_at + begins + delay))
        for job in arrivals
        for delay in (draw.uniform(0.0, JITTER_SECONDS),)
    ]


def averaged(runs: Sequence[Measures]) -> Measures:
    """Return the means over runs of the same jobs."""
    return Measures(
        waits={name: mean(run.waits[name] for run in runs) for name in runs[0].waits},
        makespan_seconds=mean(run.makespan_seconds for run in runs),
        gpu_hours=mean(run.gpu_hours for run in runs),
    )


def spread_rows(runs: Iterable[Measures]) -> list[Row]:
    """Return the least and the largest mean wait of the simulated traces."""
    waits = [run.mean_wait_seconds for run in runs]
    return [
        Row(name=f"mean wait, {word} of {len(waits)} simulated", value=value, unit="s")
        for word, value in (("least", min(waits)), ("largest", max(waits)))
    ]


def rows(*, live: Measures, simulated: Measures) -> list[Row]:
    """Both, and how far the simulator is off."""
    compared = (
        ("makespan", "s", live.makespan_seconds, simulated.makespan_seconds),
        ("mean wait", "s", live.mean_wait_seconds, simulated.mean_wait_seconds),
        ("GPU-hours held", "h", live.gpu_hours, simulated.gpu_hours),
    )
    lines: list[Row] = []
    for name, unit, measured, said in compared:
        error = 100 * abs(said - measured) / measured
        lines += [
            Row(name=f"{name}, live", value=measured, unit=unit),
            Row(name=f"{name}, simulated", value=said, unit=unit, source="computed"),
            Row(
                name=f"  {name}: error of the simulator",
                value=error,
                unit="%",
                goal=f"<= {GOAL_PERCENT:g} %",
                met=error <= GOAL_PERCENT,
            ),
        ]
    return lines


def told_rows(live: Measures) -> list[Row]:
    """Return the errors of the expected starts in the statuses."""
    lines: list[Row] = []
    for name, told in (("first", live.first), ("every", live.every)):
        if told is None or told.median_error is None or told.by_p90 is None:
            continue
        error, covered = 100 * told.median_error, 100 * told.by_p90
        lines += [
            Row(name=f"{name} expected start of a wait: number", value=told.forecasts, unit=""),
            Row(
                name="  median error",
                value=error,
                unit="%",
                goal=f"<= {STARTS_GOAL_PERCENT:g} %",
                met=error <= STARTS_GOAL_PERCENT,
            ),
            Row(
                name="  started at or before expectedStartBy",
                value=covered,
                unit="%",
                goal="80 to 95 %",
                met=80 <= covered <= 95,
            ),
        ]
    return lines


def _queues() -> dict[str, Json]:
    """Specs by name: a cohort of three that take back what they lent."""
    rule = {"withinQueue": "LowerPriority", "reclaim": "Any"}
    specs: dict[str, Json] = {"lab": {"quotas": [{"gpuPool": "bench", "nominalGpus": 0}]}}
    for name, gpus in QUOTAS.items():
        quotas = [{"gpuPool": "bench", "nominalGpus": gpus}]
        specs[name] = {"parent": "lab", "quotas": quotas, "preemption": rule}
    return specs


def _objects() -> list[Json]:
    return [custom("TrainingQueue", name, spec) for name, spec in _queues().items()]


@dataclass(slots=True, kw_only=True)
class _LiveJob:
    """A job of the trace on the control plane."""

    spec: TraceJob
    pods: int
    submitted_at: float = 0.0
    over_at: float = 0.0
    """End of its last pod. The job ends in the simulator then, before its status says so."""
    ended_at: float | None = None
    held_since: float | None = None
    held_seconds: float = 0.0
    running: set[str] = field(default_factory=set[str])
    """Names of its pods that run."""
    bound: set[str] = field(default_factory=set[str])
    ending: asyncio.Task[None] | None = None
    told: list[tuple[float, ExpectedStart]] = field(
        default_factory=list[tuple[float, ExpectedStart]]
    )
    """Expected starts of the present wait, each with the time at which it was seen."""
    waits: list[list[StartForecast]] = field(default_factory=list[list[StartForecast]])
    """Forecasts of earlier waits, each with its actual start."""

    def see(self, status: Mapping[str, Any], *, now: float) -> None:
        """Note an expected start, or the start of the job."""
        admitted, expected = status.get("admittedAt"), status.get("expectedStart")
        if status.get("assignment") is not None and admitted is not None:
            at = parse_timestamp(admitted)
            known = [
                StartForecast.of(each, made_at=made, started_at=at) for made, each in self.told
            ]
            self.waits.append([each for each in known if each is not None])
            self.told = []
        elif expected is not None:
            by, name = status.get("expectedStartBy"), self.spec.name
            start = ExpectedStart(
                key=name,
                uid=name,
                p50_at=parse_timestamp(expected),
                p90_at=None if by is None else parse_timestamp(by),
            )
            if not self.told or self.told[-1][1] != start:
                self.told.append((now, start))


@dataclass(slots=True, kw_only=True)
class _Recorder:
    """Submits, ends pods in time, and notes who held places how long."""

    stand: Stand
    jobs: dict[str, _LiveJob]
    tasks: asyncio.TaskGroup
    all_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, name: str, *, began: float) -> None:
        """Create one job when its time has come."""
        job = self.jobs[name]
        await asyncio.sleep(began + job.spec.submit_seconds - time.perf_counter())
        manifest = load.job_manifest(
            name,
            nodes=job.pods,
            gpus=job.spec.gpus // job.pods,
            queue=job.spec.queue,
            activeDeadlineSeconds=job.spec.max_runtime_seconds,
        )
        job.submitted_at = time.perf_counter()
        await writes.create(
            self.stand.client, TRAINING_JOBS, body=manifest, namespace=load.NAMESPACE
        )

    def take_pod(self, event: Event[PodView]) -> None:
        """A pod was bound, runs, ended or is gone."""
        pod = event.view
        job = self.jobs.get(pod.name.rsplit("-", 2)[0])
        if job is None:
            return
        now = time.perf_counter()
        is_over = event.change is Change.DELETED or pod.phase in (
            PodPhase.SUCCEEDED,
            PodPhase.FAILED,
        )
        if is_over:
            self._pod_over(job, pod.name, now=now)
            return
        if pod.node_name:
            job.bound.add(pod.name)
            if job.held_since is None:
                job.held_since = now
        if pod.phase == PodPhase.RUNNING:
            job.running.add(pod.name)
        if len(job.running) == job.pods and job.ending is None:
            job.ending = self.tasks.create_task(self._end(job))

    def take_job(self, event: Event[TrainingJobView]) -> None:
        """Record a new status of a job, or its end."""
        if event.change is not Change.DELETED:
            self.jobs[event.view.name].see(codec.status_of(event.view), now=time.time())
        if event.change is Change.DELETED or not codec.status_of(event.view).get("finishedAt"):
            return
        job = self.jobs[event.view.name]
        if job.ended_at is None:
            job.ended_at = time.perf_counter()
        if all(each.ended_at is not None for each in self.jobs.values()):
            self.all_ended.set()

    def _pod_over(self, job: _LiveJob, name: str, *, now: float) -> None:
        job.running.discard(name)
        job.bound.discard(name)
        if job.bound or job.held_since is None:
            return
        job.over_at = now
        job.held_seconds += now - job.held_since
        job.held_since = None
        if job.ending is not None and not job.ending.done():
            job.ending.cancel()  # it was preempted
        job.ending = None

    async def _end(self, job: _LiveJob) -> None:
        await asyncio.sleep(job.spec.duration_seconds)
        await asyncio.gather(*(self._succeed(pod) for pod in sorted(job.running)))

    async def _succeed(self, pod: str) -> None:
        container = {
            "name": "main",
            "image": "any:1",
            "imageID": "",
            "restartCount": 0,
            "ready": False,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
        }
        with suppress(KubeError):  # it was preempted meanwhile
            await writes.merge_patch(
                self.stand.client,
                PODS,
                name=pod,
                body={"status": {"phase": "Succeeded", "containerStatuses": [container]}},
                namespace=load.NAMESPACE,
                subresource="status",
            )


async def _live(cluster: Cluster, folder: Path, jobs: list[TraceJob]) -> Measures:
    async with standing(cluster, folder) as stand, asyncio.TaskGroup() as tasks:
        await stand.start_operator()
        live = {job.name: _LiveJob(spec=job, pods=job.nodes or 1) for job in jobs}
        recorder = _Recorder(stand=stand, jobs=live, tasks=tasks)
        here = Selection(namespace=load.NAMESPACE)
        views = Informer(stand.client, TRAINING_JOBS, decode=codec.training_job, selection=here)
        pods = Informer(stand.client, PODS, decode=codec.pod, selection=here)
        views.subscribe(recorder.take_job)
        pods.subscribe(recorder.take_pod)
        watches = [asyncio.create_task(views.run()), asyncio.create_task(pods.run())]
        began = time.perf_counter()
        submissions = [asyncio.create_task(recorder.submit(name, began=began)) for name in live]
        limit = LIMIT_SECONDS * len(jobs) / JOBS
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*submissions)
                await recorder.all_ended.wait()
        except TimeoutError:
            seen = await load.jobs_seen(stand.client)
            raise load.StalledError(f"not all jobs ended within {limit:g} s; {seen}") from None
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
    return _measures(live.values(), began=began)


def _measures(jobs: Iterable[_LiveJob], *, began: float) -> Measures:
    waits: dict[str, float] = {}
    gpu_seconds = makespan = 0.0
    known = list(jobs)
    for job in known:
        assert job.ended_at is not None
        waits[job.spec.name] = job.over_at - job.submitted_at - job.held_seconds
        gpu_seconds += job.spec.gpus * job.held_seconds
        makespan = max(makespan, job.over_at - began)
    told = [wait for job in known for wait in job.waits if wait]
    return Measures(
        waits=waits,
        makespan_seconds=makespan,
        gpu_hours=gpu_seconds / 3600,
        first=calibration(wait[0] for wait in told),
        every=calibration(each for wait in told for each in wait),
    )


if __name__ == "__main__":
    main()
