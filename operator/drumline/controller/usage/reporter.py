"""Status of queues and pools: use, conditions and Prometheus gauges.

It is computed every few seconds, less often if that takes long, and written only when it changed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

from drumline.controller.job_events import EventAction
from drumline.controller.nodes.health import NodeHealthBook
from drumline.controller.pools.calibration import (
    PartVotes,
    calibration_fields,
    known_parts,
    part_fields,
    part_votes,
    step_percents,
)
from drumline.controller.pools.overlaps import overlap_of
from drumline.controller.queues.budget_gauges import show_budgets
from drumline.controller.queues.gpu_seconds_rates import GpuSecondsRates, JobUse
from drumline.controller.queues.overrides import override_fields
from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.usage.cluster_series import cluster_series
from drumline.controller.usage.platform_conditions import (
    PodEvictions,
    Statements,
    news_in,
    of_pool,
    of_queue,
    status_fields,
)
from drumline.controller.workloads.workloads import WorkloadInLine
from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Invalid, KubeError, NotLeader
from drumline.kube.events import EventRecorder, Occurrence, Regarding, Severity
from drumline.kube.informer import Informer
from drumline.kube.kinds import GPU_POOLS, TRAINING_QUEUES, Resource
from drumline.kube.views import Key, ObjectView
from drumline.lifecycle.model.signing_keys import KeyState, SigningKeys
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline_api.gpupool import GpuPoolSpec
from drumline_contract import Progress
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.forecast.lines import CANNOT_START
from drumline_scheduler.model import Node, Pool, Queue, Snapshot
from drumline_scheduler.overrides import gpus_below_guarantee
from drumline_scheduler.quota.usage_budgets import held_in

log = logs.get("drumline.controller.usage.reporter")

INTERVAL_SECONDS = 5.0
MOST_WAITING = 16
"""Most workloads that a queue's status names."""
PAUSE_FACTOR = 100
"""Pause after an observation as a multiple of its CPU time, if that exceeds the interval.

It limits the reporter to 1 % of one core.
"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Figures of one observation, from which all statuses are made."""

    figures: Mapping[tuple[str, str], Json]
    """Figures of each queue and pool, by kind and name."""
    below: Mapping[tuple[str, str], int]
    """GPUs that jobs with an override keep from other queues, by queue and job."""
    granted: Mapping[str, Queue]
    """Queues with overrides."""
    percents: Mapping[str, int]
    """Step time in percent of the prediction, by pool."""
    votes: Mapping[str, PartVotes]
    """Votes of jobs about the parts of a step, by pool."""
    nodes: Mapping[str, Sequence[Node]]
    """Nodes by pool."""
    now: float


class UsageReporter:
    """Writes the use and the conditions of queues and pools to their statuses.

    Args:
        client: fenced client for the API server.
        state: the caches.
        queues: the TrainingQueues as last seen.
        pools: the GpuPools as last seen.
        metrics: holds the gauges.
        job_metrics: number of jobs with their own series.
        usage: usage history of the queues, which observes each snapshot.
        health: health of the nodes, which observes each snapshot.
        signing_keys: keys of this leader. Running gangs are counted by the key that they use.
        progress: returns the progress that a job's agents reported last, by its uid.
        autoscaling: returns the status fields about a pool's autoscaler, by its name.
        expected: returns the expected start of a waiting gang, by its uid.
        evictions: what this installation does about foreign pods that must leave.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        state: ClusterCache,
        queues: Informer[ObjectView],
        pools: Informer[ObjectView],
        metrics: Metrics,
        job_metrics: int,
        usage: QueueUsageHistory,
        health: NodeHealthBook,
        signing_keys: SigningKeys,
        progress: Callable[[str], Progress | None],
        autoscaling: Callable[[str], Json],
        expected: Callable[[str], ExpectedStart | None],
        evictions: PodEvictions,
        recorder: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._state = state
        self._queues = queues
        self._pools = pools
        self._metrics = metrics
        self._job_metrics = job_metrics
        self._usage = usage
        self._health = health
        self._signing_keys = signing_keys
        self._progress = progress
        self._autoscaling = autoscaling
        self._expected = expected
        self._evictions = evictions
        self._recorder = recorder
        self._clock = clock
        self._rates = GpuSecondsRates()

    async def run(self) -> None:
        """Report every few seconds. Never returns."""
        while True:
            began = time.thread_time()
            try:
                await self.report()
            except NotLeader:
                raise
            except Exception:  # figures for people: the next look tries again
                log.exception("report_failed")
            took = time.thread_time() - began
            await asyncio.sleep(max(INTERVAL_SECONDS, PAUSE_FACTOR * took))

    async def report(self) -> None:
        """Update every status and gauge."""
        # Phase 1: observe. All observers get the same snapshot and time.
        now = self._clock()
        uses = self._rates.of(self._state.jobs.all())
        self._report_goodput(uses, now=now)
        self._report_disruptions()
        self._report_signing_keys()
        snapshot = self._state.scheduling.snapshot(now=now)
        self._usage.observe(snapshot, now=now)
        self._health.look(snapshot.nodes, now=now)
        self._state.interruptions.observe(snapshot, self._state.nodes.disruptions(), now=now)
        self._report_budgets(uses, snapshot, now=now)
        self._metrics.cluster.newest = cluster_series(
            [use.job for use in uses],
            snapshot=snapshot,
            disruptions=self._state.nodes.disruptions(),
            pods_of=self._state.pods.of,
            most_jobs=self._job_metrics,
            now=now,
        )
        # Phase 2: figures of all queues and pools, in one pass over the snapshot.
        nodes: dict[str, list[Node]] = defaultdict(list)
        for node in snapshot.nodes:
            nodes[node.pool].append(node)
        seen = _Seen(
            figures=self._queue_figures(snapshot) | self._pool_figures(snapshot),
            below=self._below_guarantee(snapshot, now=now),
            granted={queue.name: queue for queue in snapshot.queues if queue.overrides},
            percents=self._report_calibration(),
            votes=part_votes(self._state.jobs.all(), self._progress),
            nodes=nodes,
            now=now,
        )
        # Phase 3: write each status that differs. The fields of slow figures keep their written
        # value unless something else changes, so that the passing of time alone causes few writes.
        for resource, informer in ((TRAINING_QUEUES, self._queues), (GPU_POOLS, self._pools)):
            for view in list(informer.values()):
                try:
                    status = self._status_of(resource, view, seen)
                except Exception:  # one object must not keep the others from their statuses
                    log.exception("report_failed", object=view.name)
                    continue
                if status != view.status:
                    await self._write(resource, view, status)

    def _status_of(self, resource: Resource, view: ObjectView, seen: _Seen) -> Json:
        """Return the status of a queue or a pool."""
        name, before, now = view.name, view.status, seen.now
        statements = self._statements(resource, view, nodes=seen.nodes.get(name, ()))
        status = dict(seen.figures.get((resource.plural, name), {}))
        status |= status_fields(view, statements, now=now)
        if resource is TRAINING_QUEUES:
            if (queue := seen.granted.get(name)) is not None:
                status |= override_fields(queue, before=before, below=seen.below, now=now)
            return status | self._usage_fields(view, status, now=now)
        status |= self._health.fields(name)
        status |= self._autoscaling(name)
        status |= calibration_fields(before, seen.percents.get(name))
        status |= part_fields(before, seen.votes.get(name, {}))
        return status | self._interruption_fields(view, status, now=now)

    async def report_spec(self, resource: Resource, name: str) -> None:
        """Write the conditions of a new spec at once. Figures follow with the next observation."""
        informer = self._queues if resource is TRAINING_QUEUES else self._pools
        view = informer.get(Key("", name))
        if view is None:
            return
        now = self._clock()
        nodes: list[Node] = []
        if resource is GPU_POOLS:
            snapshot = self._state.scheduling.snapshot(now=now)
            nodes = [node for node in snapshot.nodes if node.pool == name]
        statements = self._statements(resource, view, nodes=nodes)
        status = view.status | status_fields(view, statements, now=now)
        if status != view.status:
            await self._write(resource, view, status)

    def _statements(
        self, resource: Resource, view: ObjectView, *, nodes: Iterable[Node]
    ) -> Statements:
        pools, queues = self._state.pools, self._state.queues
        if resource is GPU_POOLS:
            overlap = overlap_of(view.name, contested=self._state.nodes.contested)
            return of_pool(problem=pools.problem(view.name), nodes=nodes, overlap=overlap)
        return of_queue(
            queues.get(view.name),
            problem=queues.problem(view.name),
            is_pool=lambda name: pools.get(name) is not None,
            is_queue=lambda name: queues.get(name) is not None,
            evictions=self._evictions,
            parent_of=lambda name: spec.parent if (spec := queues.get(name)) else None,
            is_namespace=self._state.namespaces.may_exist,
            gpus_of=self._fixed_gpus_of,
            now=self._clock(),
        )

    def _fixed_gpus_of(self, pool: str) -> int:
        """Return the total GPUs of a pool as last written; 0 for a pool that may grow."""
        spec, view = self._state.pools.get(pool), self._pools.get(Key("", pool))
        if spec is None or spec.autoscaling is not None or view is None:
            return 0
        total = view.status.get("totalGpus")
        return total if isinstance(total, int) else 0

    def _below_guarantee(self, snapshot: Snapshot, *, now: float) -> Mapping[tuple[str, str], int]:
        """Return the GPUs that jobs with an override keep from other queues, by queue and job."""
        if not any(queue.overrides for queue in snapshot.queues):
            return {}
        return gpus_below_guarantee(snapshot, pending=self._state.scheduling.pending(), now=now)

    def _usage_fields(self, view: ObjectView, status: Json, *, now: float) -> Json:
        """Return the usage fields of a queue, refreshed rarely or with another change."""
        changed = any(view.status.get(field) != value for field, value in status.items())
        name, before = view.name, view.status
        return {
            **self._usage.status_fields(name, before=before, changed=changed, now=now),
            **self._state.budgets.status_fields(name, before=before, changed=changed, now=now),
        }

    def _interruption_fields(self, view: ObjectView, status: Json, *, now: float) -> Json:
        """Return the fields about spot reclaims: at once after one, or with another change."""
        changed = any(view.status.get(field) != value for field, value in status.items())
        return self._state.interruptions.status_fields(
            view.name, before=view.status, changed=changed, now=now
        )

    def _report_budgets(self, uses: Iterable[JobUse], snapshot: Snapshot, *, now: float) -> None:
        # Pools with partitions count parts. The budget counts whole GPUs.
        foreign: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        pools = {pool.name: pool for pool in snapshot.pools}
        for held in snapshot.admitted:
            if held.is_foreign:
                gpus, _ = held_in(pools.get(held.pool), held.gpus)
                foreign[held.gang.queue, held.pool] += gpus
        self._state.budgets.observe(uses, foreign_gpus=foreign, now=now)
        names = self._job_metrics > 0
        show_budgets(self._metrics.budgets, self._state.budgets, names_users=names, now=now)

    def _report_goodput(self, uses: Iterable[JobUse], *, now: float) -> None:
        productive: dict[str, Fraction] = defaultdict(Fraction)
        every: dict[str, Fraction] = defaultdict(Fraction)
        for job, rate in uses:
            if rate is not None:
                useful, held = rate.at(now)
                productive[job.spec.queue] += useful * rate.share
                every[job.spec.queue] += held * rate.share
        self._metrics.recovery.goodput.clear()
        for queue, held in every.items():
            if held:
                self._metrics.recovery.goodput.labels(queue).set(float(productive[queue] / held))

    def _report_calibration(self) -> dict[str, int]:
        percents = step_percents(self._state.jobs.all())
        gauge = self._metrics.scheduling.pool_step_time
        gauge.clear()
        for pool, percent in percents.items():
            gauge.labels(gpu_pool=pool).set(percent / 100)
        parts = self._metrics.scheduling.pool_step_part
        parts.clear()
        for view in self._pools.values():
            for part, percent in known_parts(view.status).items():
                parts.labels(gpu_pool=view.name, part=str(part)).set(percent / 100)
        return percents

    def _report_signing_keys(self) -> None:
        names = Counter(
            job.status.signing_key
            for job in self._state.jobs.all()
            if job.has_agents and job.status.assignment is not None and not job.finished
        )
        gangs = Counter[KeyState]()
        # Few names: computing a key's state takes signatures.
        for name, count in names.items():  # a handful: to tell a key's state takes signatures
            gangs[self._signing_keys.state(name)] += count
        for state in KeyState:
            self._metrics.controller.gangs_by_signing_key.labels(state).set(gangs[state])

    def _report_disruptions(self) -> None:
        announced = Counter(
            (str(disruption.kind), disruption.confidence.name.lower())
            for disruption in self._state.nodes.disruptions()
        )
        self._metrics.recovery.node_disruptions.clear()
        for (kind, confidence), nodes in announced.items():
            self._metrics.recovery.node_disruptions.labels(kind, confidence).set(nodes)

    def _queue_figures(self, snapshot: Snapshot) -> dict[tuple[str, str], Json]:
        # Phase 1: sum the GPUs of admitted gangs by queue and pool.
        used: dict[str, Counter[str]] = defaultdict(Counter)
        foreign: dict[str, Counter[str]] = defaultdict(Counter)
        admitted: Counter[str] = Counter()
        for held in snapshot.admitted:
            used[held.gang.queue][held.pool] += held.gpus
            foreign[held.gang.queue][held.pool] += held.gpus if held.is_foreign else 0
            admitted[held.gang.queue] += not (held.is_residual or held.gang.surplus_of)
        pending = Counter(job.spec.queue for job in self._state.jobs.all() if is_queued(job))
        parts = {pool.name: pool.parts_per_gpu for pool in snapshot.pools}
        # Phase 2: one status and the gauges of each queue. Gauges are in GPUs, statuses in the
        # pool's unit.
        statuses: dict[tuple[str, str], Json] = {}
        self._metrics.scheduling.queue_gpus.clear()
        for queue in snapshot.queues:
            usage: list[Json] = []
            for pool, nominal in queue.nominal.items():
                amount = used[queue.name][pool]
                theirs = foreign[queue.name][pool]
                figures = {"gpuPool": pool, "nominalGpus": nominal, "usedGpus": amount}
                usage.append({**figures, "foreignGpus": theirs} if theirs else figures)
                gauge = self._metrics.scheduling.queue_gpus
                for kind, figure in (("used", amount), ("foreign", theirs), ("nominal", nominal)):
                    gpus = figure / parts.get(pool, 1)
                    gauge.labels(queue=queue.name, gpu_pool=pool, kind=kind).set(gpus)
            statuses[TRAINING_QUEUES.plural, queue.name] = {
                "admittedJobs": admitted[queue.name],
                "pendingJobs": pending[queue.name],
                "usage": usage,
                **self._waiting_workloads(queue.name),
                "gpus": f"{_in_gpus(used[queue.name], parts)}/{_in_gpus(queue.nominal, parts)}",
            }
        return statuses

    def _waiting_workloads(self, queue: str) -> Json:
        """Return the status fields about waiting workloads, or none if no workload waits."""
        workloads = self._state.workloads
        waiting = (workloads and workloads.waiting_for(queue)) or ()
        return waiting_fields(waiting, pools=self._state.pools.by_name, expected=self._expected)

    def _pool_figures(self, snapshot: Snapshot) -> dict[tuple[str, str], Json]:
        nodes: Counter[str] = Counter()
        total: Counter[str] = Counter()
        used: Counter[str] = Counter()
        jobs = Counter(
            held.pool
            for held in snapshot.admitted
            if not (held.is_residual or held.is_foreign or held.gang.surplus_of)
        )
        for node in snapshot.nodes:
            nodes[node.pool] += 1
            total[node.pool] += node.allocatable.gpus
            used[node.pool] += node.used.gpus
        # Clear first: a deleted pool must not keep its series.
        self._metrics.scheduling.pool_gpus.clear()
        statuses: dict[tuple[str, str], Json] = {}
        for pool in snapshot.pools:
            name = pool.name
            gauge = self._metrics.scheduling.pool_gpus
            gauge.labels(gpu_pool=name, kind="total").set(total[name] / pool.parts_per_gpu)
            gauge.labels(gpu_pool=name, kind="used").set(used[name] / pool.parts_per_gpu)
            statuses[GPU_POOLS.plural, name] = {
                "nodes": nodes[name],
                "totalGpus": total[name],
                "usedGpus": used[name],
                "jobs": jobs[name],
                "gpus": f"{used[name]}/{total[name]}{_unit(pool)}",
            }
        return statuses

    async def _write(self, resource: Resource, view: ObjectView, status: Json) -> None:
        try:
            await writes.replace_status(
                self._client,
                resource,
                name=view.name,
                uid=view.uid,
                resource_version=view.resource_version,
                status=status,
            )
        except NotLeader:
            raise
        except KubeError as error:  # the next look tries again
            # A status that the schema rejects is rejected again: it must show.
            report = log.warning if isinstance(error, Invalid) else log.debug
            report("status_write_failed", object=view.name, error=str(error))
            return
        for is_problem, reason, note in news_in(view, status):
            self._recorder.record(
                Occurrence(
                    regarding=Regarding(
                        resource=resource, namespace="", name=view.name, uid=view.uid
                    ),
                    reason=reason,
                    action=EventAction.JUDGE,
                    note=note,
                    severity=Severity.WARNING if is_problem else Severity.NORMAL,
                )
            )


def _in_gpus(amounts: Mapping[str, int], parts: Mapping[str, int]) -> str:
    """Return the sum over several pools in GPUs, to the hundredth: `16`, `16.43`."""
    gpus = sum(Fraction(amount, parts.get(pool, 1)) for pool, amount in amounts.items())
    return f"{float(gpus):.2f}".rstrip("0").rstrip(".")


def _unit(pool: Pool) -> str:
    """Return the unit of a pool's figures if it is not GPUs."""
    return " parts" if pool.parts_per_gpu > 1 else ""


def waiting_fields(
    waiting: Sequence[WorkloadInLine],
    *,
    pools: Mapping[str, GpuPoolSpec],
    expected: Callable[[str], ExpectedStart | None],
) -> Json:
    """Return the status fields about waiting workloads, or none if no workload waits.

    Args:
        waiting: the waiting workloads of a queue.
        pools: the pools, to count GPUs.
        expected: returns the expected start of a gang, by its uid.
    """
    if not waiting:
        return {}
    # A pod and a group of pods may have one name. The API server rejects a name that occurs twice.
    by_key: dict[str, WorkloadInLine] = {}
    for each in waiting:
        by_key.setdefault(each.workload.key, each)
    shown = islice(by_key.values(), MOST_WAITING)
    first = [workload_in_line(each, pools=pools, expected=expected) for each in shown]
    return {"pendingWorkloads": len(waiting), "waitingWorkloads": first}


def workload_in_line(
    waiting: WorkloadInLine,
    *,
    pools: Mapping[str, GpuPoolSpec],
    expected: Callable[[str], ExpectedStart | None],
) -> Json:
    """Return the status entry of a waiting workload.

    Its gangs start together, so it starts with the last of them.

    Args:
        waiting: the workload, and why it waits.
        pools: the pools, to count its GPUs.
        expected: returns the expected start of a gang, by its uid.
    """
    # A time is given only if every gang has one: the last gang decides.
    uids = () if waiting.reason in CANNOT_START else waiting.gangs
    starts = [start for uid in uids if (start := expected(uid)) is not None]
    p50 = [start.p50_at for start in starts if start.p50_at is not None]
    p90 = [start.p90_at for start in starts if start.p90_at is not None]
    fields: Json = {"workload": waiting.workload.key, "gpus": waiting.workload.gpus(pools)}
    if waiting.position:
        fields["position"] = waiting.position
    if waiting.workload.queued_at:
        fields["queuedAt"] = timestamp(waiting.workload.queued_at)
    if p50 and len(p50) == len(waiting.gangs):
        fields["expectedStart"] = timestamp(max(p50))
        if len(p90) == len(p50):
            fields["expectedStartBy"] = timestamp(max(p90))
    return {**fields, "reason": waiting.reason, "message": waiting.message}
