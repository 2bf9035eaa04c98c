"""Observe one job, plan it, execute the plan. Many keys at a time, each by one worker.

The status is written first, conditional on its version. The actions follow only if that write
succeeded and the new status needs no further write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from drumline.controller.agents.watch import AgentWatch, GangReport, MemberAddress, WatchedGang
from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.reconciler.executor import (
    Executor,
    GangRejected,
    RetryLater,
    StartRefused,
)
from drumline.controller.reconciler.job_memory import (
    UNSEEN_SECONDS,
    JobMemory,
    figures_due,
    is_recent,
)
from drumline.controller.reconciler.orphan_sweep import JobIdentity
from drumline.controller.reconciler.surroundings import broken_domain, orphaned
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.snapshots import Backoff
from drumline.kube.errors import Conflict, KubeError, NotLeader
from drumline.lifecycle.incidents.failures import refused_by_kubelet
from drumline.lifecycle.model.gang import reachable_agents
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.observed import DEFAULT_IDLE_RULES, Observed, PodFacts
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.model.verdict import Refusal
from drumline.lifecycle.plan.claims import ClaimUnusable
from drumline.lifecycle.plan.planner import plan_job
from drumline.lifecycle.plan.slow_start import start_refused
from drumline.lifecycle.plan.start_check import remedy_of_refusal
from drumline.lifecycle.transitions import growth_abandoned
from drumline.telemetry import logs
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from drumline_api.conditions import Phase, Reason
from drumline_api.trainingjob import TrainingJobStatus
from drumline_contract import Pause, Progress

log = logs.get("drumline.controller.reconciler.reconciler")

GOOD_RUN_SECONDS = 600.0
STATUS_REFRESH_SECONDS = 10.0
"""Least time between two writes that only report the progress of a slow start."""
_FAILED_STARTS = (Reason.START_BLOCKED, Reason.START_DEADLINE_EXCEEDED)
_NEVER_FREE = (Reason.API_REFUSED, *_FAILED_STARTS)
"""Reasons for the loss of an assignment that back off from the first loss on."""
MAX_WRITES_A_RECONCILE = 4
MAX_REFUSED_WRITES = 4
"""Concurrent status writes of jobs that cannot be scheduled as they are written."""
REFUSED_WRITE_SECONDS = 1.0
"""Delay after more writes in a row. The plan does not settle, so other jobs go first."""


class Reconciler:
    """Moves jobs to the state that their plans require.

    Args:
        writer: writes statuses.
        executor: executes actions.
        watch: watch of training gangs.
        state: the caches.
        epoch: epoch of this leader.
        progress_seconds: least time between two writes of a job's figures.
        metrics: counts outcomes.
        ledger: counts incidents and GPU-seconds.
        job_events: writes events that users read.
        clock: seconds since the epoch.
        why_unbound: returns why the pod with a uid is not bound yet, or ''.
    """

    def __init__(
        self,
        *,
        writer: StatusWriter,
        executor: Executor,
        watch: AgentWatch,
        state: ClusterCache,
        epoch: int,
        progress_seconds: float,
        metrics: Metrics,
        ledger: IncidentCounters,
        job_events: JobEvents,
        clock: Callable[[], float],
        why_unbound: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._why_unbound = why_unbound
        self._writer = writer
        self._executor = executor
        self._watch = watch
        self._state = state
        self._epoch = epoch
        self._progress_seconds = progress_seconds
        self._metrics = metrics
        self._ledger = ledger
        self._job_events = job_events
        self._clock = clock
        self._memory: dict[str, JobMemory] = {}
        self._refused_writes = 0

    async def reconcile(self, key: str) -> float | None:
        """Move one job forward. Return the seconds until it is due again, or None.

        Raises:
            RetryLater: try again after the given time.
            KubeError: try again after a backoff.
        """
        # Phase 1: jobs that were deleted with this key. Forget them, and delete pods that stay.
        for uid in self._state.jobs.take_deleted(key):
            self._memory.pop(uid, None)
            self._watch.unfollow(uid)
            self._job_events.forget(uid)
            namespace, _, name = key.partition("/")
            if self._state.pods.of(namespace, uid):
                await self._executor.delete_orphans(JobIdentity(namespace, name, uid))
        # Phase 2: write statuses until the plan needs no further one. The number is bounded, so a
        # plan that does not settle cannot keep a worker.
        for _ in range(MAX_WRITES_A_RECONCILE):
            job = self._state.jobs.get(key)
            if job is None:
                return None
            memory = self._memory.setdefault(job.uid, JobMemory())
            observed = self._observe(job, memory)
            now = self._clock()
            planned = plan_job(job, observed, now=now, epoch=self._epoch)
            # Status before actions: after a crash the next leader plans the same actions from it.
            if planned.status is not None:
                await self._write(job, planned.status)
                memory.written_at = now
                self.announce(job, planned.status)
                continue
            # Phase 3: the actions. A rejection becomes a status, so plan once more.
            try:
                for action in planned.actions:
                    await self._executor.act(job, action, memory)
            except GangRejected as rejection:
                await self._requeue_rejected(job, str(rejection))
                continue
            except StartRefused as refusal:
                await self._refuse_start(job, refusal.unusable)
                continue
            return self._requeue_after(job, memory, planned.requeue_at, now=now)
        raise RetryLater(0.1)

    async def _write(self, job: Job, status: TrainingJobStatus) -> None:
        """Write a status. Refused jobs never occupy many workers at a time.

        The API server takes seconds to write the status of an object with hundreds of thousands of
        values. Only refused objects are that large.
        """
        refused = isinstance(job.verdict, Refusal)
        if refused and self._refused_writes >= MAX_REFUSED_WRITES:
            raise RetryLater(REFUSED_WRITE_SECONDS)
        self._refused_writes += refused
        try:
            await self._writer.write(job, status)
        finally:
            self._refused_writes -= refused

    def settled_status(self, job: Job) -> TrainingJobStatus:
        """Return the status that this job's plan reaches before its first action.

        The statuses before it need not be written: no component acts on them.

        Args:
            job: the job with a status that was decided and is not written yet.
        """
        memory = self._memory.setdefault(job.uid, JobMemory())
        observed, now = self._observe(job, memory), self._clock()
        for _ in range(MAX_WRITES_A_RECONCILE):
            planned = plan_job(job, observed, now=now, epoch=self._epoch)
            if planned.status is None:
                break
            job = replace(job, status=planned.status)
        return job.status

    def knows(self, key: str) -> bool:
        """Return whether a job with this key exists."""
        return self._state.jobs.get(key) is not None

    def _explained(self, pod: PodFacts) -> PodFacts:
        """Return a pod that is not bound with the reason for it. No kubelet reports one."""
        why = self._why_unbound(pod.uid) if pod.unbound else ""
        return replace(pod, waiting=why) if why else pod

    def _observe(self, job: Job, memory: JobMemory) -> Observed:
        # Everything is read at one moment. `plan_job` is pure and sees nothing else.
        pods = tuple(map(self._explained, self._state.pods.of(job.namespace, job.uid)))
        nodes = {member.node for member in members_of(job.status)}
        report = self._watch_gang(job, pods, memory)
        now, queue = self._clock(), self._state.queues.get(job.spec.queue)
        return Observed(
            pods=pods,
            predecessors=self._state.chains.standing_of(job),
            is_awaited=job.finished and self._state.chains.is_awaited(job),
            refresh_due=not is_recent(memory.written_at, now=now, seconds=STATUS_REFRESH_SECONDS),
            acknowledged_generation=memory.acknowledged_generation,
            contradicted_generation=memory.contradicted_generation,
            evictable=memory.evictable_at(job.status.generation, size=job.wanted),
            progress=self._progress(job, report, memory),
            expected_pods=memory.unseen_at(now, shown={pod.name for pod in pods}),
            pod_events=memory.pod_events,
            silent=report.lost if report else frozenset(),
            gone_nodes=frozenset(filter(self._state.nodes.is_gone, nodes)),
            node_disruptions=self._state.nodes.disruptions_of(sorted(nodes)),
            incidents=report.status.incidents if report else (),
            notice=report.status.notice if report else None,
            acknowledges_saves=report.status.acknowledges_saves if report else False,
            waiting_for=report.status.waiting_for if report else None,
            remark=report.status.remark if report else None,
            pause=_pause(job, report),
            orphaned=orphaned(job, self._state),
            broken_domain=broken_domain(job, self._state),
            idle_rules=queue.idle if queue is not None else DEFAULT_IDLE_RULES,
            notified=memory.notified,
            withdrawn=memory.withdrawn,
        )

    def _watch_gang(
        self, job: Job, pods: tuple[PodFacts, ...], memory: JobMemory
    ) -> GangReport | None:
        """Watch a gang once its agents know each other. Return their latest report."""
        generation = job.status.generation
        trains = job.status.phase in {Phase.RUNNING, Phase.RECOVERING}
        acknowledged = memory.acknowledged_generation == generation
        # Agents without the record of this generation would only answer that they wait for it.
        if job.status.assignment is None or job.finished or not (trains or acknowledged):
            self._watch.unfollow(job.uid)
            return None
        report = self._watch.report(job.uid)
        if report is not None:
            memory.heard_generation = max(memory.heard_generation, report.status.generation)
        if job.is_supervised:
            self._watch.follow(self._gang(job, pods, memory))
        return report

    def _gang(self, job: Job, pods: tuple[PodFacts, ...], memory: JobMemory) -> WatchedGang:
        return WatchedGang(
            key=job.key,
            uid=job.uid,
            token=self._executor.token(job),
            lost_after_seconds=float(job.spec.recovery.lost_after_seconds),
            members=tuple(
                MemberAddress(
                    index=pod.index,
                    pod_uid=pod.uid,
                    address=pod.ip,
                    pod_generation=pod.generation,
                    node_ready=self._state.nodes.is_ready(pod.node),
                )
                for pod in reachable_agents(job, pods, known=memory.known_generation)
            ),
        )

    def _progress(self, job: Job, report: GangReport | None, memory: JobMemory) -> Progress | None:
        """Return the gang's progress if a status write is due, or None."""
        if not self._has_figures(job):
            memory.figures_at = None
            return None
        due = figures_due(job, report, memory, now=self._clock(), every=self._progress_seconds)
        return report.status.progress if due and report else None

    def _requeue_after(
        self, job: Job, memory: JobMemory, requeue_at: float | None, *, now: float
    ) -> float | None:
        # The earliest reason to look again counts: the plan, the figures, or expected pods.
        delays: list[float] = []
        if requeue_at is not None:
            delays.append(requeue_at - now)
        if self._has_figures(job) and memory.figures_at is not None:
            delays.append(min(memory.figures_at - now, 0.0) + self._progress_seconds)
        if memory.unseen:
            delays.append(UNSEEN_SECONDS)
        return max(0.0, min(delays)) if delays else None

    def _has_figures(self, job: Job) -> bool:
        return job.is_supervised and job.status.phase == Phase.RUNNING

    async def _requeue_rejected(self, job: Job, message: str) -> None:
        """Treat a gang that the API server rejects as a failed start. Its nodes are released.

        A gang whose new members are rejected continues without them.
        """
        cause, now = f"the API server rejected its pods: {message}", self._clock()
        log.warning("gang_refused", job=job.key, error=message)
        places = job.status.assignment
        if places is not None and places.joining:
            status = growth_abandoned(job, message=cause, now=now)
        else:
            status = start_refused(
                job,
                message=cause,
                remedy=remedy_of_refusal(message),
                now=now,
                reason=Reason.API_REFUSED,
            )
        await self._writer.write(job, status)
        self.announce(job, status)

    async def _refuse_start(self, job: Job, unusable: ClaimUnusable) -> None:
        """Treat a start that cannot work as failed. No pod was created."""
        log.warning("start_refused", job=job.key, error=unusable.message)
        status = start_refused(
            job, message=unusable.message, remedy=unusable.remedy, now=self._clock()
        )
        await self._writer.write(job, status)
        self.announce(job, status)

    def _back_off(self, job: Job, status: TrainingJobStatus) -> None:
        """Make a gang that loses its assignment repeatedly wait longer each time.

        The first loss has no delay, unless the pods were rejected or did not start. A run of
        `GOOD_RUN_SECONDS` resets the count. A node that had to be left never adds a delay.

            losses 1, 2, 3, 4 -> 0, 10, 20, 40 s;   rejections 1, 2, 3 -> 10, 20, 40 s
        """
        if self._state.jobs.get(job.key) is None:
            return
        now, reason = self._clock(), str(status.reason)
        before = self._state.scheduling.backoffs.get(job.uid)
        started = parse_timestamp(job.status.started_at) if job.status.started_at else now
        first = before is None or before.of_growth or now - started > GOOD_RUN_SECONDS
        count = 1 if before is None or first else before.count + 1
        count = max(count, status.failed_starts or 0)  # survives the operator
        free_losses = 1 if reason in _NEVER_FREE else 2
        cause = status.incident or reason
        self._state.scheduling.backoffs[job.uid] = Backoff.after(
            count - free_losses + 1, cause=cause, count=count, now=now
        )

    def _note_growth(self, job: Job, status: TrainingJobStatus) -> None:
        """Make a running gang wait longer each time before it grows, if its growth has failed."""
        was, now = job.status.assignment, status.assignment
        grew = was is not None and bool(was.joining) and status.generation == job.status.generation
        if was is None or now is None or now.joining or not grew:
            return
        backoffs = self._state.scheduling.backoffs
        known = backoffs.get(job.uid)
        count = known.count if known is not None and known.of_growth else 0
        if len(now.nodes) < len(was.nodes):
            cause, count = status.message or "", count + 1
            backoff = Backoff.after(count, cause=cause, count=count, now=self._clock())
            backoffs[job.uid] = replace(backoff, of_growth=True)
        elif count:
            del backoffs[job.uid]

    def announce(self, job: Job, status: TrainingJobStatus) -> None:
        """Log, count and report a status that was written.

        Args:
            job: the job with the status before.
            status: the status after.
        """
        before = job.status
        # Phase 1: events and counters compare both statuses themselves.
        self._job_events.became(job, status)
        self._ledger.observe(job.status, status, queue=job.spec.queue)
        # Phase 2: nodes that may be at fault are avoided until their next update.
        if status.reason == Reason.KUBELET_REFUSED:
            self._distrust_rejecting_nodes(job)
        if status.reason in _FAILED_STARTS:
            self._distrust_slow_nodes(job)
        # Phase 3: log lines and metrics of the changes.
        if (status.phase, status.generation) != (before.phase, before.generation):
            log.info(
                "job_phase",
                job=job.key,
                phase=str(status.phase),
                reason=status.reason,
                message=status.message,
                generation=status.generation,
                step=status.step,
                loss=status.loss,
            )
        if status.finished_at and not before.finished_at:
            self._metrics.jobs.finished.labels(outcome=str(status.phase)).inc()
        # A disruption is the node's fault, so the job does not back off.
        released = before.assignment and not status.assignment and status.phase == Phase.PENDING
        if released and status.reason != Reason.NODE_DISRUPTED:
            self._back_off(job, status)
        self._note_growth(job, status)
        if status.phase == Phase.RUNNING and before.phase != Phase.RUNNING and status.generation_at:
            waited = self._clock() - parse_timestamp(status.generation_at)
            self._metrics.scheduling.start_seconds.observe(max(0.0, waited))
        if (status.generation or 0) > (before.generation or 0):
            self._metrics.jobs.restarts.labels(reason=status.reason or "").inc()

    def _distrust_slow_nodes(self, job: Job) -> None:
        """Distrust the nodes of late pods if other pods of the gang came up."""
        pods = [p for p in self._state.pods.of(job.namespace, job.uid) if not p.terminating]
        late = [pod for pod in pods if not pod.ready and not pod.joining and pod.end is None]
        if len(late) < len(pods):
            self._distrust(job, late)

    def _distrust_rejecting_nodes(self, job: Job) -> None:
        pods = self._state.pods.of(job.namespace, job.uid)
        self._distrust(job, [p for p in pods if p.end is not None and refused_by_kubelet(p.end)])

    def _distrust(self, job: Job, pods: Iterable[PodFacts]) -> None:
        assignment = job.status.assignment
        pool = assignment.gpu_pool if assignment is not None else ""
        names = dict.fromkeys(pod.node for pod in pods)
        self._state.nodes.distrust(names, pool=pool, by=job.namespace)


def _pause(job: Job, report: GangReport | None) -> Pause | None:
    """Return the pause in the report of this generation's agents, or None without a report."""
    if report is None or not report.is_answered:
        return None
    if report.status.generation != job.status.generation:
        return None
    return report.status.pause or Pause(seconds=0.0, usual_seconds=0.0)


async def work(*, queue: WorkQueue, reconciler: Reconciler, metrics: Metrics) -> None:
    """Reconcile keys in an endless loop. Never returns.

    Args:
        queue: keys of changed jobs.
        reconciler: reconciles one key.
        metrics: counts results and durations.

    Raises:
        NotLeader: this process may not write any more.
    """
    while True:
        # Yield to the event loop. `get` of a full queue and a plan without actions never yield, so
        # ten thousand keys at the start of a term would delay the first decision.
        await asyncio.sleep(0)
        key = await queue.get()
        started = time.perf_counter()
        try:
            delay = await reconciler.reconcile(key)
            queue.forget(key)
            if delay is not None:
                queue.add_after(key, delay)
            elif not reconciler.knows(key):
                queue.drop(key)
        except RetryLater as later:
            queue.add_after(key, later.seconds)
        except Conflict:  # the watch shows what was missed, mostly within milliseconds
            queue.retry(key)
        except NotLeader:
            raise
        except KubeError as error:
            delay = queue.retry(key)
            metrics.controller.reconcile_errors.labels(kind=type(error).__name__).inc()
            log.warning("reconcile_failed", job=key, error=str(error), retry_in_seconds=delay)
        except Exception as error:  # one poisoned object must not stop the others
            delay = queue.retry(key)
            metrics.controller.reconcile_errors.labels(kind=type(error).__name__).inc()
            log.exception("reconcile_crashed", job=key, retry_in_seconds=delay)
        finally:
            metrics.controller.reconcile_seconds.observe(time.perf_counter() - started)
            queue.done(key)
