"""The scheduler's input: the snapshot of the cluster and the waiting gangs.

A value is computed once and kept while its inputs stay the same. A gang depends on the version of
its job. An admitted gang depends on the version of its job and the events of its pods. The
scheduler recognises an unchanged `Admitted` by identity (`scheduler.snapshot_cache`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from drumline.controller.informers.namespaces import NamespaceCache
from drumline.controller.informers.specs import PriorityCache, SpecCache
from drumline.controller.informers.volumes import VolumeCache, attachable
from drumline.controller.jobs.chains import Chains
from drumline.controller.jobs.conversion import (
    added_requests,
    effective_priority,
    gang_of,
    planned_requests,
)
from drumline.controller.jobs.jobs import JobCache
from drumline.controller.nodes.conversion import pool_of
from drumline.controller.nodes.interruptions import Interruptions
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.nodes.pods import JobPods, is_owned
from drumline.controller.queues.budgets import QueueBudgets
from drumline.controller.queues.conversion import has_percentage, queue_of
from drumline.controller.state.held_by_pods import HeldByPods
from drumline.controller.state.remaining_pods import RemainingPods
from drumline.controller.workloads.admitted import (
    MemberPositions,
    admitted_of,
    gpu_seconds_at_risk,
    holds_assignment,
    is_leaving,
    positions_of,
    with_risk,
)
from drumline.controller.workloads.held import (
    ForeignPod,
    account_of,
    held_by_lost_writes,
    unchanged,
)
from drumline.controller.workloads.workloads import Workloads
from drumline.kube.views import PodView
from drumline.lifecycle.model.chains import Standing
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.roles import role_pod
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.model.verdict import Verdict
from drumline.lifecycle.plan.acceptance import is_queued, refusal_for
from drumline.lifecycle.plan.start_check import failed_start_of
from drumline.scope import InstallationScope
from drumline_api.base import LABEL_GENERATION, LABEL_INDEX, LABEL_JOB
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.role import RoleSpec
from drumline_api.trainingjob import TrainingJobSpec
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_contract import Progress
from drumline_scheduler.model import (
    Admitted,
    Gang,
    Obstacle,
    ObstacleKind,
    Snapshot,
    Toleration,
    VolumeReach,
)
from drumline_scheduler.placement.gpu_counts import GpuCounts
from drumline_scheduler.preemption.pauses import pause_of
from drumline_scheduler.resources import NOTHING, Resources

FIRST_BACKOFF_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 600.0
RISK_SECONDS = 60.0
"""Age up to which the work that an eviction would lose is not computed again."""


class EvictionPermission(NamedTuple):
    """Permission to evict other gangs for a gang, or the reason against it."""

    preempts: bool
    refusal: str
    obstacle: Obstacle | None = None


ADDED_SECONDS: Final = 600.0
"""Time for which requests that admission added count for a job without places."""
_UNRESTRICTED: Final = EvictionPermission(preempts=True, refusal="")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStart:
    """A start that a check refused before any eviction for it."""

    generation: int
    """Generation of the job's spec."""
    failed_starts: int
    """`status.failedStarts` including this one. A higher number means that a later start failed."""
    until: float = 0.0
    """Time until which no gang is evicted for it and it is not moved (seconds since the epoch)."""
    message: str = ""


@dataclass(slots=True, kw_only=True)
class _Added:
    """Requests that admission adds to each pod of a job."""

    requests: Resources
    generation: int
    """Generation of the spec of the job whose pods had them."""
    start: str
    """Generation of these pods, or '' for pods of a dry run."""
    until: float
    """Time until which they count for a job without places (seconds since the epoch)."""


class _MadeOf(NamedTuple):
    """The values that a gang was computed from, beside the version of its job."""

    backoff: Backoff | None
    priority: int
    permission: EvictionPermission
    added: Resources
    verdict: Verdict | None
    predecessors: Standing
    pool: GpuPoolSpec | None
    queue_spot: str | None
    volumes: tuple[VolumeReach, ...]


class _KnownAdmitted(NamedTuple):
    """An admitted job, its inputs, and the time of the last look at its work at risk."""

    stamp: tuple[object, ...]
    minute: float
    gang: Gang
    admitted: tuple[Admitted, ...]
    """One gang, and perhaps its surplus as a second one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Earliest time of the next placement of a job that failed repeatedly, with the cause."""

    until: float
    cause: str
    count: int
    of_write: bool = False
    """True if the status of the job was not written, so it is not written before `until`."""
    of_growth: bool = False
    """True if the growth of a running gang failed. It delays neither repairs nor moves."""

    @classmethod
    def after(cls, failures: int, *, cause: str, count: int, now: float) -> Backoff:
        """Return the backoff after `failures` failures in a row.

        0 failures: no delay. 1, 2, 3 ...: 10, 20, 40 ... at most 600 seconds.

        Args:
            failures: failures in a row.
            cause: shown in the waiting message.
            count: number of failures that the message shows.
            now: Unix time in seconds.
        """
        steps = min(failures - 1, 16)
        delay = 0.0 if steps < 0 else min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**steps)
        return cls(until=now + delay, cause=cause, count=count)


def is_ahead(until: float, *, now: float) -> bool:
    """Return whether a pause lasts until this time. A later end is of a clock that was set back."""
    return now < until <= now + MAX_BACKOFF_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The caches that a snapshot is built from."""

    jobs: JobCache
    chains: Chains
    pods: JobPods
    nodes: NodeCache
    pools: SpecCache[GpuPoolSpec]
    queues: SpecCache[TrainingQueueSpec]
    namespaces: NamespaceCache
    budgets: QueueBudgets
    interruptions: Interruptions
    priorities: PriorityCache
    volumes: VolumeCache
    workloads: Workloads | None


class SnapshotBuilder:
    """Builds the input of a scheduling cycle.

    Args:
        sources: the caches.
        progress: returns the progress that a job's agents reported last, by the job's uid.
        platform_tolerations: tolerations that the platform adds to pods of the bundled trainer.
        scope: scope of this installation.
        guarded: pools in which foreign pods may be victims. None if not known.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        progress: Callable[[str], Progress | None],
        platform_tolerations: tuple[Toleration, ...],
        scope: InstallationScope,
        guarded: frozenset[str] | None,
    ) -> None:
        self._sources = sources
        self._progress = progress
        self._platform_tolerations = platform_tolerations
        self._scope = scope
        self._gangs: dict[str, tuple[Job, _MadeOf, Gang]] = {}
        self._positions: dict[str, tuple[str, MemberPositions]] = {}
        self._admitted: dict[str, _KnownAdmitted] = {}
        self._leaving_since: dict[str, float] = {}
        """Time at which a job with places was first seen to leave, by uid."""
        self._added: dict[str, _Added] = {}
        """Keyed by uid of the job."""
        self._planned: tuple[TrainingJobSpec, RoleSpec | None, Resources] | None = None
        """The spec, the role and the requests that `learn_requests` needed last."""
        self._learned: tuple[Resources, Mapping[str, int], Resources] | None = None
        """Planned and seen requests of the last pod, and their difference."""
        self._remaining = RemainingPods(
            jobs=sources.jobs,
            pods=sources.pods,
            queues=sources.queues,
            namespaces=sources.namespaces,
            scope=scope,
            positions_of=self._positions_of,
            admits_workloads=sources.workloads is not None,
        )
        nodes, pools, workloads = sources.nodes, sources.pools, sources.workloads
        self._by_pods = HeldByPods(
            self._remaining, nodes=nodes, pools=pools, workloads=workloads, guarded=guarded
        )
        self._in_doubt: dict[str, Admitted] = {}
        """Resources that writes without an answer may have taken, in the last snapshot, by uid."""
        self.backoffs: dict[str, Backoff] = {}
        """Keyed by uid of the job."""
        self.checked: dict[str, CheckedStart] = {}
        """Keyed by uid of a job whose last start a check refused."""
        self._now = 0.0
        self.left_out: dict[str, str] = {}
        """Jobs at which the operator failed, with the reason.

        Each is listed once for each of its specs. The reader clears it.
        """

    def group_members(self, uid: str) -> tuple[ForeignPod, ...]:
        """Return the pods of a group of foreign pods by uid of its gang, or none."""
        return self._by_pods.members(uid)

    def foreign_pod_stays(self, pod_uid: str, *, until: float) -> None:
        """Exclude a foreign pod that cannot be evicted from being a victim until `until`."""
        self._by_pods.stays(pod_uid, until=until)

    def snapshot(self, *, now: float) -> Snapshot:
        """Return the cluster now. O(nodes changed since the last snapshot + admitted jobs)."""
        sources, self._now = self._sources, now
        # Nodes first: computing them determines which pods are charged (`HeldByPods.held`).
        nodes = tuple(sources.nodes.in_pools(sources.pools.by_name, roles=self._remaining.on_node))
        has_percentages = any(map(has_percentage, sources.queues.by_name.values()))
        gpus = GpuCounts.of(nodes if has_percentages else ())
        return Snapshot(
            nodes=nodes,
            pools=tuple(
                pool_of(name, spec, lost_percent=sources.interruptions.lost_percent(name, now=now))
                for name, spec in sources.pools.by_name.items()
            ),
            queues=tuple(
                queue_of(name, spec, selected=sources.namespaces.selected(spec), gpus=gpus)
                for name, spec in sources.queues.by_name.items()
            ),
            admitted=(*self._all_admitted(now=now), *self._held_beside(now=now)),
            spent=sources.budgets.spent(now),
            spent_prices=sources.budgets.spent_prices(now),
            spent_by_user=sources.budgets.spent_by_user(now),
        )

    def pending(self) -> list[Gang]:
        """Return every job and every other workload that waits for an assignment."""
        workloads = self._sources.workloads
        return [*self._waiting_jobs(), *(workloads.pending() if workloads else ())]

    def prepare(self, key: str) -> None:
        """Convert a waiting job now, so that a cycle after many events has little to convert."""
        job = self._sources.jobs.get(key)
        if job is not None and is_queued(job) and self._has_class(job):
            self._gang(job)

    def _waiting_jobs(self) -> list[Gang]:
        # A lost write may have given these jobs their places. They must not be placed twice.
        taken = {
            doubt.read.uid
            for doubt in self._sources.jobs.in_doubt()
            if any(status.assignment is not None for status in doubt.statuses)
        }
        waiting = [
            job
            for job in self._sources.jobs.all()
            if is_queued(job) and self._has_class(job) and job.uid not in taken
        ]
        gangs = [gang for job in waiting if (gang := self._gang(job)) is not None]
        has_groups = any(gang.group for gang in gangs)
        return self._without_started_members(gangs) if has_groups else gangs

    def priority_of(self, job: Job) -> int:
        """Return the job's effective priority."""
        queue = self._sources.queues.get(job.spec.queue)
        return effective_priority(
            job,
            value=self._sources.priorities.value_of(job.spec.priority_class_name),
            highest=queue.max_priority if queue is not None else None,
        )

    def jobs_without_priority_class(self) -> list[Job]:
        """Return the waiting jobs that name a priority class that does not exist."""
        jobs = self._sources.jobs.all()
        return [job for job in jobs if not self._has_class(job) and is_queued(job)]

    def forget(self, namespace: str, uid: str) -> None:
        """Forget a deleted job."""
        self._remaining.forget(namespace, uid)
        self._sources.volumes.forget(uid)
        by_uids = (
            *(self._gangs, self._positions, self._admitted, self._added, self.backoffs),
            *(self._leaving_since, self.checked),
        )
        for by_uid in by_uids:
            by_uid.pop(uid, None)

    def adopt(self, other: SnapshotBuilder) -> None:
        """Use the gangs of another builder as far as they are made of the same values."""
        self._gangs = {**other._gangs, **self._gangs}

    def learn_requests(self, pod: PodView) -> None:
        """Learn from a new pod the requests that admission adds to its job's pods.

        Later placements count them: a gang that a kubelet rejected for lack of CPU is placed with
        its real requests.
        """
        job = self._sources.jobs.get(f"{pod.namespace}/{pod.labels.get(LABEL_JOB, '')}")
        if job is None or not is_owned(pod) or job.uid != pod.owner_uid:
            return
        try:
            index = int(pod.labels.get(LABEL_INDEX, "0"))
            planned = self._planned_of(job, index=index)
            learned = self._learned
            # The pods of a gang follow each other, and equal pods share their requests.
            if learned is None or learned[0] is not planned or learned[1] is not pod.requests:
                added = added_requests(planned, pod.requests)
                learned = self._learned = (planned, pod.requests, added)
        except Exception:  # noqa: BLE001 - one bad job must not stop the cache; `_gang` notes it
            return
        self._learn(job, learned[2], start=pod.labels.get(LABEL_GENERATION, ""))

    def learn_admitted(self, job: Job, *, index: int, requests: Mapping[str, int]) -> bool:
        """Learn from a dry run what admission adds to a pod. Return whether it is more than known.

        Args:
            job: the job that would start.
            index: index of the pod.
            requests: requests of the pod as admitted. CPU in thousandths of a core.
        """
        before = self._learned_of(job)
        self._learn(job, added_requests(self._planned_of(job, index=index), requests))
        return self._learned_of(job) != before

    def _learn(self, job: Job, added: Resources, *, start: str = "") -> None:
        """Keep the largest requests of the pods of a start. Those of roles differ."""
        known = self._added.get(job.uid)
        if known is None and added == NOTHING:
            return
        # A pod of a new start shows what admission adds now.
        is_new = known is not None and start not in ("", known.start)
        before = NOTHING if is_new else self._learned_of(job)
        self._added[job.uid] = _Added(
            requests=_larger(before, added),
            generation=job.object_generation,
            start=start or (known.start if known is not None else ""),
            until=self._now + ADDED_SECONDS,
        )

    def _learned_of(self, job: Job) -> Resources:
        """Return the learned requests of a job.

        They count for one spec, and without places for `ADDED_SECONDS`. Otherwise a gang that they
        keep from every place would wait on after somebody has changed what adds them.
        """
        if job.uid not in self._added:  # as for most jobs, in each cycle
            return NOTHING
        known = self._added[job.uid]
        if known.generation != job.object_generation:
            return NOTHING
        if job.status.assignment is not None:
            known.until = max(known.until, self._now + ADDED_SECONDS)
        return known.requests if self._now < known.until else NOTHING

    def _planned_of(self, job: Job, *, index: int) -> Resources:
        """Return the requests that a job's spec states for its pod with this index.

        A list has the pods of a gang one after the other, and most of them are equal.
        """
        position = role_pod(job.spec, index)
        role = None if position is None else position.role
        known = self._planned
        if known is None or known[0] is not job.spec or known[1] is not role:
            known = self._planned = (job.spec, role, planned_requests(job, role))
        return known[2]

    def tidy(self) -> None:
        """Forget deleted jobs whose pods are gone, as each snapshot does."""
        self._remaining.tidy()

    def places_given_up(self, job: Job) -> None:
        """Record that a newer version has replaced this version of a job with nodes."""
        self._remaining.remember(job)

    def _without_started_members(self, gangs: list[Gang]) -> list[Gang]:
        """Reduce groups by the jobs that started and gave their assignment back.

        No job waits for them.

            group of 3: actor and critic wait, reward trained and was suspended -> both wait for 2
        """
        over = Counter(
            (job.namespace, job.spec.group.name)
            for job in self._sources.jobs.all()
            if job.spec.group is not None
            and job.status.generation is not None
            and job.status.assignment is None
        )
        started = {gang.uid: over[gang.namespace, gang.group] for gang in gangs if gang.group}
        return [
            replace(gang, group_gangs=max(1, gang.group_gangs - started[gang.uid]))
            if started.get(gang.uid)
            else gang
            for gang in gangs
        ]

    def _has_class(self, job: Job) -> bool:
        return self._sources.priorities.exists(job.spec.priority_class_name)

    def _all_admitted(self, *, now: float) -> Iterable[Admitted]:
        for job in list(self._sources.jobs.all()):
            gang = self._gang(job) if holds_assignment(job) else None
            if gang is None:
                continue
            try:
                yield from self._admitted_gangs(job, gang, now=now)
            except Exception as error:  # noqa: BLE001 - one bad job must not stop the cycle
                self._leave_out(job, error)
                if job.uid in self._admitted:  # it pays for what it was last known to hold
                    yield from self._admitted[job.uid].admitted

    def _admitted_gangs(self, job: Job, gang: Gang, *, now: float) -> tuple[Admitted, ...]:
        """Return the admitted gangs of a job: the same objects while nothing changed.

        The work that an eviction would lose grows all the time. It is computed every
        `RISK_SECONDS`, and the value changes only if it differs by more than `RISK_SHARE`. So a
        gang that has trained for a day without a checkpoint stays the same object for hours.
        """
        pods = self._sources.pods
        progress = self._progress(job.uid)
        saved = progress.checkpoint_step if progress is not None else None
        stamp = (job.resource_version, pods.stamp(job.namespace, job.uid), saved)
        minute = now // RISK_SECONDS
        known = self._admitted.get(job.uid)
        # The job or its pods changed: compute everything.
        if known is None or known.stamp != stamp or known.gang is not gang:
            if is_leaving(job):
                self._leaving_since.setdefault(job.uid, now)
            else:
                self._leaving_since.pop(job.uid, None)
            admitted = admitted_of(
                job,
                gang=gang,
                positions=self._positions_of(job),
                pods=pods.of(job.namespace, job.uid),
                progress=progress,
                now=now,
                leaving_since=self._leaving_since.get(job.uid),
            )
        # Only time has passed: compute the work at risk.
        elif known.minute != minute:
            risk = gpu_seconds_at_risk(job, progress, now=now)
            first, *surplus = known.admitted
            admitted = (with_risk(first, risk), *surplus)
        else:
            return known.admitted
        self._admitted[job.uid] = _KnownAdmitted(stamp, minute, gang, admitted)
        return admitted

    def _held_beside(self, *, now: float) -> Iterable[Admitted]:
        """Return what jobs and foreign pods hold beside the jobs' places.

        O(jobs in doubt + pods that remain + foreign pods with a queue).
        """
        self._remaining.tidy()
        self._in_doubt = unchanged(self._held_in_doubt(), before=self._in_doubt)
        workloads = self._sources.workloads
        admitted_workloads = workloads.held(now=now) if workloads else ()
        return [*self._by_pods.held(now=now), *self._in_doubt.values(), *admitted_workloads]

    def _held_in_doubt(self) -> Iterable[Admitted]:
        for doubt in self._sources.jobs.in_doubt():
            gang = self._gang(doubt.read)
            if gang is not None:
                holds = holds_assignment(doubt.read)
                places = self._positions_of(doubt.read).nodes if holds else ()
                yield from held_by_lost_writes(
                    account_of(doubt.read),
                    per_pod=gang.per_pod,
                    places=places,
                    statuses=doubt.statuses,
                )

    def _positions_of(self, job: Job) -> MemberPositions:
        known = self._positions.get(job.uid)
        if known is None or known[0] != job.resource_version:
            known = self._positions[job.uid] = (job.resource_version, positions_of(job))
        return known[1]

    def _gang(self, job: Job) -> Gang | None:
        """Return the scheduler's value of a job, or None, noted in `left_out`, if it is impossible.

        It stays the same object while version, spec, verdict, backoff, priority, predecessors and
        added requests stay the same.
        """
        # Phase 1: the inputs. They are compared, so that a changed queue or pool also counts.
        sources = self._sources
        backoff, queue = self.backoffs.get(job.uid), sources.queues.get(job.spec.queue)
        if backoff is not None and not self._counts(backoff, job):
            backoff = None
        made_of = _MadeOf(
            backoff=backoff,
            priority=self.priority_of(job),
            permission=self._eviction_permission(job),
            added=self._added_to(job, queue),
            verdict=job.verdict,
            predecessors=self._sources.chains.standing_of(job),
            pool=self._sources.pools.get(job.spec.gpu_pool or ""),
            queue_spot=queue.spot if queue is not None else None,
            volumes=sources.volumes.reach_of(job) if sources.volumes.is_known else (),
        )
        known = self._gangs.get(job.uid)
        if known is not None and known[1] == made_of and _is_same_version(known[0], job):
            return known[2]
        # Phase 2: convert. A job that cannot be converted must not stop the cycle.
        try:
            gang = gang_of(
                job,
                priority=made_of.priority,
                platform_tolerations=self._platform_tolerations,
                may_check=self._scope.may_check(job.namespace),
                retry_at=backoff.until if backoff else 0.0,
                retry_cause=backoff.cause if backoff else "",
                added=made_of.added,
                predecessors=made_of.predecessors,
                pool=made_of.pool,
                queue_spot=made_of.queue_spot,
            )
        except Exception as error:  # noqa: BLE001 - one bad job must not stop the cycle
            self._leave_out(job, error)
            return None
        # Phase 3: what most gangs do not have, so most gangs are built without a copy.
        if made_of.permission is not _UNRESTRICTED:
            preempts, refusal, obstacle = made_of.permission
            gang = replace(gang, preempts=preempts, refusal=refusal, obstacle=obstacle)
        if made_of.volumes:
            surplus = gang.surplus and _with_volumes(gang.surplus, made_of.volumes)
            gang = replace(_with_volumes(gang, made_of.volumes), surplus=surplus)
        self._gangs[job.uid] = (job, made_of, gang)
        return gang

    def _added_to(self, job: Job, queue: TrainingQueueSpec | None) -> Resources:
        """Return what admission adds to each pod of a job, as far as that is known.

        A pod that was seen has the overhead of its RuntimeClass among its requests. Before that,
        the largest overhead of the pools that the job may use counts.
        """
        learned, pools = self._learned_of(job), self._sources.pools
        names = [job.spec.gpu_pool] if job.spec.gpu_pool else job.spec.gpu_pools
        if names is None:
            names = [quota.gpu_pool for quota in queue.quotas] if queue is not None else []
        overhead = self._sources.nodes.runtime_classes.overhead(map(pools.get, names))
        if not overhead:
            return learned
        return replace(
            learned,
            cpu_millis=max(learned.cpu_millis, overhead.get("cpu", 0)),
            memory_bytes=max(learned.memory_bytes, overhead.get("memory", 0)),
            ephemeral_bytes=max(learned.ephemeral_bytes, overhead.get("ephemeral-storage", 0)),
        )

    def _eviction_permission(self, job: Job) -> EvictionPermission:
        """Return whether other gangs may be evicted for a job, and what keeps it from any place."""
        sources, volumes, refusal = self._sources, self._sources.volumes, self._refusal_of(job)
        obstacle = None
        if volumes.is_known:
            obstacle = volumes.obstacle_of(job)
        if volumes.has_claims:
            refusal = refusal or volumes.unbound_of(job)
        # A refusal applies to evictions only: on free places the job may still start.
        if job.namespace in sources.namespaces.terminating:
            refusal = f"namespace {job.namespace} is being deleted"
            message = f"{refusal}: create the job in another namespace"
            obstacle = Obstacle(kind=ObstacleKind.NAMESPACE_ENDS, message=message)
        preempts = job.spec.priority_class_name not in sources.priorities.polite
        if preempts and not refusal and obstacle is None:
            return _UNRESTRICTED
        return EvictionPermission(preempts, refusal, obstacle)

    def _counts(self, backoff: Backoff, job: Job) -> bool:
        """Return whether a backoff delays a job. One may be from before the clock was set back."""
        places = job.status.assignment
        whole = places is not None and not places.lost and job.status.disruption is None
        return backoff.until <= self._now + MAX_BACKOFF_SECONDS and (whole or not backoff.of_growth)

    def _refusal_of(self, job: Job) -> str:
        """Return why no gang is evicted for a job: its start would be refused, or it pauses; or ''.

        A start that only a check refused is checked again after its backoff.
        """
        checked = self.checked.get(job.uid)
        # A new spec may have fixed the refused start.
        if checked is not None and checked.generation != job.object_generation:
            checked = None
        if checked is not None and is_ahead(checked.until, now=self._now):
            return checked.message
        failed = job.status.failed_starts or 0
        if failed and (checked is None or failed > checked.failed_starts):
            return failed_start_of(job)
        times = job.status.preempted_at
        if times is None or job.status.assignment is not None:
            return ""
        return pause_of([parse_timestamp(each) for each in times], now=self._now)

    def _leave_out(self, job: Job, error: Exception) -> None:
        """Make the operator's failure at a job its verdict until its spec changes."""
        refusal = refusal_for(error)
        if job.verdict != refusal and self._sources.jobs.settle(job, refusal):
            self.left_out[job.key] = refusal.message


def _larger(left: Resources, right: Resources) -> Resources:
    """Return the larger amounts of what admission adds."""
    return Resources(
        cpu_millis=max(left.cpu_millis, right.cpu_millis),
        memory_bytes=max(left.memory_bytes, right.memory_bytes),
        ephemeral_bytes=max(left.ephemeral_bytes, right.ephemeral_bytes),
    )


def _with_volumes(gang: Gang, volumes: tuple[VolumeReach, ...]) -> Gang:
    """Return a gang with its volumes. Volumes of its pods' own are a resource of each pod."""
    own = tuple((attachable(each.driver), 1) for each in volumes if each.driver and not each.volume)
    per_pod = gang.per_pod + Resources(extended=own) if own else gang.per_pod
    return replace(gang, volumes=volumes, per_pod=per_pod)


def _is_same_version(known: Job, job: Job) -> bool:
    """Return whether both are one version of a job, written by us or shown by the watch."""
    return known is job or (
        known.resource_version == job.resource_version and known.spec is job.spec
    )
