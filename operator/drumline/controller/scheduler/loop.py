"""The scheduler loop: snapshot, decide, write. `drumline_scheduler` decides.

An event wakes it. It waits until a burst of events is over, decides once, and writes all admissions
at once. Then it looks again. Its writes are assumed by then, so no capacity is assigned twice. A
write that conflicted (409) changes nothing, and the next cycle sees why.

An exception on one gang is that gang's answer. An exception in a step that only informs or requests
is logged and counted. A gang that takes too long is stopped (`cycle_thread`). Any other exception
ends the cycle, and the next one follows after `FAILED_CYCLE_SECONDS`.

The first cycle of a term explains nothing. Explaining ten thousand waiting jobs takes longer than
the starts that are possible now, and the previous leader has written the explanations. The second
cycle follows at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from drumline.controller.pools.node_requests import NodeRequests
from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.scheduler.captures import CycleCaptures
from drumline.controller.scheduler.committer import Committer
from drumline.controller.scheduler.cycle_thread import CycleLimits, CycleThread
from drumline.controller.scheduler.fault_memory import FaultMemory, OnFault
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.scheduler.garbage import GarbageCollector
from drumline.controller.scheduler.guard import Guard
from drumline.controller.scheduler.waiting_messages import WaitingMessages
from drumline.controller.scheduler.waiting_text import text_of
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.admission import WorkloadAdmission
from drumline.kube.errors import NotLeader
from drumline.lifecycle.model.job import Job
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, BlockReason, Decisions
from drumline_scheduler.fault_isolation import TooManyFaultsError
from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Policy
from drumline_scheduler.queue_evictions import stopped_queues
from drumline_scheduler.queueing.arrivals import Arrivals
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from drumline_scheduler.work import TimeLimit

log = logs.get("drumline.controller.scheduler.loop")

MIN_SETTLE_SECONDS = 0.005
"""Jobs arrive in bursts of events. Deciding once for many is cheaper and fairer."""
MAX_SETTLE_SECONDS = 0.25
"""Longest wait for the start of a decision, however long decisions take."""
PACE = 4
"""Pause as a multiple of the last decision's time.

While decisions take up to 60 ms, the scheduler uses at most a fifth of one core.
"""
RETRY_SECONDS = 0.25
LOOK_SECONDS = 60.0
LOOK_FACTOR = 200
"""Interval of cycles without events while jobs wait, and its least multiple of the last one.

Shares decay, and messages whose refresh had to wait are refreshed. A cluster at rest uses at most
half a percent of one core for it.
"""
FAILED_CYCLE_SECONDS = 5.0
_REASONS: Final = frozenset(map(str, BlockReason))
MISSING_PRIORITY_CLASS = "PriorityClassNotFound"


class SchedulerLoop:
    """Assigns nodes to waiting jobs.

    Args:
        state: the caches.
        committer: writes decisions.
        messages: writes why jobs wait.
        metrics: measures cycles and counts jobs.
        clock: seconds since the epoch.
        wake: set when a decision may have changed.
        policy: the administrator's scheduling policy.
        usage: usage history of the queues.
        forecasts: expected starts of waiting jobs.
        captures: writes requested cycles to files.
        node_requests: demands for nodes of autoscalers.
        guard: keeps kube-scheduler off promised places.
        faults: gangs that are set aside because the scheduler raised an exception on them.
        enqueue: wakes the reconciler for a job's key.
        admission: admits workloads other than TrainingJobs. None: they do not wait here.
        limits: limits of one cycle.
    """

    def __init__(
        self,
        *,
        state: ClusterCache,
        committer: Committer,
        messages: WaitingMessages,
        metrics: Metrics,
        clock: Callable[[], float],
        wake: asyncio.Event,
        policy: Policy,
        usage: QueueUsageHistory,
        forecasts: Forecasts,
        captures: CycleCaptures,
        node_requests: NodeRequests,
        guard: Guard,
        faults: FaultMemory,
        enqueue: Callable[[str], None],
        admission: WorkloadAdmission | None = None,
        limits: CycleLimits | None = None,
    ) -> None:
        self._limits = limits
        self._enqueue = enqueue
        self._admission = admission
        self._state = state
        self._committer = committer
        self._messages = messages
        self._metrics = metrics
        self._clock = clock
        self._wake = wake
        self._policy = policy
        self._usage = usage
        self._forecasts = forecasts
        self._captures = captures
        self._node_requests = node_requests
        self._guard = guard
        self._faults = faults
        self._cycle_cache = CycleCache()
        self._decided_in = 0.0
        self._has_decided = False
        self._deferred: tuple[str, ...] = ()
        """Uids of gangs that the last cycle did not try."""
        self._arrivals = Arrivals()
        self._put_off: tuple[str, ...] = ()
        """Uids of gangs for which the time of the last cycle did not suffice."""
        self._passed = frozenset[str]()
        self._known = frozenset[str]()
        """Uids of gangs that held no other gang back in the last cycle, under `Strict`."""
        self._untried: frozenset[str] = frozenset()
        """Uids of gangs that no cycle has tried since the last event."""
        self._has_progress = True
        """True if the last cycle tried some of these."""
        self._was_woken = True
        self.first_cycle_over = asyncio.Event()
        """Set after the first cycle, however it ended."""

    async def run(self) -> None:
        """Cycle whenever woken, or when a job's backoff ends. Never returns."""
        delay: float | None = None
        garbage = GarbageCollector()
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                self._was_woken = False
            else:
                self._was_woken = True
            # Let a burst of events settle. The pause grows with the cost of a decision.
            pause = max(MIN_SETTLE_SECONDS, min(MAX_SETTLE_SECONDS, PACE * self._decided_in))
            await asyncio.sleep(pause)
            self._was_woken |= self._wake.is_set()
            # Clear before the cycle: an event during the cycle must cause another one.
            self._wake.clear()
            try:
                delay = await self.cycle()
            except NotLeader:
                raise
            except Exception:  # no gang explains it: the next cycle may succeed
                self._metrics.faults.raised.labels(stage=Stage.CYCLE).inc()
                log.exception("cycle_failed", retry_in_seconds=FAILED_CYCLE_SECONDS)
                self._cycle_cache = CycleCache()  # it may have been left in the middle of a change
                delay = FAILED_CYCLE_SECONDS
            self.first_cycle_over.set()
            garbage.collect()

    async def cycle(self) -> float | None:
        """Run one cycle. Return the seconds until the next one is due without an event."""
        # Phase 1: withdraw evictions first, so that the snapshot sees jobs that stay.
        settled = await self._withdraw()
        # Phase 2: the input. Nothing is awaited in between, so it is one consistent state.
        started = time.perf_counter()
        now = self._clock()
        jobs = {job.uid: job for job in self._state.jobs.all()}
        explains = self._has_decided
        given = self._gather(now, jobs=jobs, explains=explains)
        self._has_decided = True
        snapshot, pending = given.snapshot, given.pending
        # Phase 3: decide, in a thread.
        gathered = time.perf_counter()
        decisions = await self._decide(given, jobs=jobs)
        decided = time.perf_counter()
        self._decided_in = took = decided - started
        # Phase 4: workloads get their part. Decisions whose nodes are not guarded yet wait.
        captured = decisions
        decisions = self._without_workloads(decisions, given=given)
        permitted = self._guard.hold_back(decisions, pending=pending)
        held_back = _starting(decisions) - _starting(permitted)
        # Phase 5: demands for nodes. They are withdrawn before pods of starting gangs are bound.
        with self._contain_errors("request nodes"):
            await self._node_requests.take(
                permitted, held_back=held_back, snapshot=snapshot, pending=pending, now=now
            )
        # Phase 6: forecasts before messages, because a message contains the expected start.
        if explains:
            self._forecasts.set_aside = captured.faults
            with self._contain_errors("forecast"):
                self._forecasts.add_rough_forecasts(
                    captured.blocked, snapshot=snapshot, pending=pending, now=now
                )
            with self._contain_errors("messages"):
                self._explain_waiting(
                    permitted, on_fault=self._faults.recorder("messages", jobs=jobs, now=now)
                )
        # Phase 7: write.
        settled &= await self._committer.carry_out(
            permitted,
            jobs=jobs,
            now=now,
            on_fault=self._faults.recorder("commit", jobs=jobs, now=now),
        )
        self._observe(gathered - started, "snapshot")
        self._observe(decided - gathered, "decide")
        self._observe(time.perf_counter() - decided, "commit")
        fresh = self._faults.take_fresh()
        if explains or fresh:
            with self._contain_errors("capture"):
                await self._captures.take(given, decisions=captured, fresh=fresh)
        self._count(decisions)
        if permitted.placed:
            log_cycle(permitted, decide_seconds=decided - gathered, started=started)
        if not explains:
            return 0.0
        # Phase 8: the time of the next cycle.
        retry_in = self._retry_in(decisions, now=now)
        return next_look(settled=settled, retry_in=retry_in, waits=bool(pending), took=took)

    def _retry_in(self, decisions: Decisions, *, now: float) -> float | None:
        """Return in how many seconds a decision may change without an event."""
        # Their turn comes now, and not with the next event.
        if (self._untried and self._has_progress) or not self._arrivals.is_complete:
            return 0.0
        times = [at for at in (decisions.retry_at, self._faults.retry_at(now)) if at is not None]
        return min(times) - now if times else None

    async def _withdraw(self) -> bool:
        """Withdraw evictions that are not needed any more. Return whether all are settled."""
        now, jobs = self._clock(), {job.uid: job for job in self._state.jobs.all()}
        on_fault = self._faults.recorder("withdraw", jobs=jobs, now=now)
        return await self._committer.withdraw(jobs.values(), now=now, on_fault=on_fault)

    def _gather(self, now: float, *, jobs: Mapping[str, Job], explains: bool) -> CycleInput:
        """Return the arguments of a cycle. A job that cannot be converted is left out."""
        snapshot = replace(self._state.scheduling.snapshot(now=now), history=self._usage.at(now))
        snapshot = self._node_requests.offered(snapshot, now=now)
        pending = tuple(self._arrivals.let_in(self._state.scheduling.pending()))
        for key, problem in self._state.scheduling.left_out.items():
            log.error("job_left_out", job=key, why=problem)
            self._enqueue(key)
        self._state.scheduling.left_out.clear()
        return CycleInput(
            snapshot=snapshot,
            pending=pending,
            policy=self._policy,
            now=now,
            set_aside=self._faults.set_aside(jobs, now=now),
            try_budget=TRY_BUDGET,
            deferred=self._deferred,
            put_off=self._put_off,
            passed=self._passed,
            known=self._known,
            explain=explains,
        )

    async def _decide(self, given: CycleInput, *, jobs: Mapping[str, Job]) -> Decisions:
        """Decide a cycle in a thread, and remember its faults.

        Raises:
            TooManyFaultsError: the next cycle skips these gangs.
        """
        cache = self._cycle_cache if given.explain else None  # it keeps rejections as they are
        try:
            decisions = await CycleThread(
                lambda work: decide(given, cache=cache, work=work),
                limits=self._limits,
                time_limit=TimeLimit.for_nodes(len(given.snapshot.nodes), clock=time.thread_time),
            ).result()
        except TooManyFaultsError as error:
            self._faults.take(error.faults, jobs=jobs, now=given.now)
            raise
        self._faults.take(decisions.faults, jobs=jobs, now=given.now)
        before, left = self._untried, frozenset((*decisions.deferred, *decisions.put_off))
        self._untried = left if self._was_woken else before & left
        # Some wait for others to get their nodes, which is an event.
        self._has_progress = self._was_woken or len(self._untried) < len(before)
        self._deferred, self._passed = decisions.deferred, decisions.passed
        self._put_off = decisions.put_off
        self._known = decisions.known
        return decisions

    def _without_workloads(self, decisions: Decisions, *, given: CycleInput) -> Decisions:
        """Pass on the decisions about other workloads. Return the decisions about jobs."""
        if self._admission is None:
            return decisions
        with self._contain_errors("workloads"):
            stopped = stopped_queues(given.snapshot, now=given.now)
            return self._admission.take(decisions, pending=given.pending, stopped=stopped)
        foreign = {gang.uid for gang in given.pending if gang.is_foreign}
        return replace(
            decisions,
            placed=tuple(each for each in decisions.placed if each.uid not in foreign),
            blocked=tuple(each for each in decisions.blocked if each.uid not in foreign),
        )

    @contextmanager
    def _contain_errors(self, stage: str) -> Generator[None]:
        """Log and count an exception in a step that no start may depend on."""
        try:
            yield
        except NotLeader:
            raise
        except Exception:  # all other steps of the cycle are carried out
            self._metrics.faults.raised.labels(stage=stage).inc()
            log.exception("cycle_step_failed", stage=stage)

    def _explain_waiting(self, decisions: Decisions, *, on_fault: OnFault) -> None:
        """Set why each waiting job waits. A nominated job has a message already."""
        waiting: set[str] = set()
        nominated = {preemption.uid for preemption in decisions.preemptions}
        before: Counter[str] = Counter()
        for blocked in decisions.blocked:
            job = self._state.jobs.get(blocked.key)
            if job is not None and job.uid == blocked.uid and blocked.uid not in nominated:
                waiting.add(job.uid)
                position = before[job.spec.queue]
                before[job.spec.queue] += 1
                try:
                    self._explain(job, blocked, position=position)
                except Exception as error:  # noqa: BLE001 - the others get their messages
                    on_fault(job.key, job.uid, error)
        for job in self._state.scheduling.jobs_without_priority_class():
            waiting.add(job.uid)
            name = job.spec.priority_class_name
            text = f"priorityClassName {name!r} does not exist; create it or set another one"
            self._messages.set(job, reason=MISSING_PRIORITY_CLASS, message=text)
        self._messages.keep_only(waiting)

    def _explain(self, job: Job, blocked: Blocked, *, position: int) -> None:
        if blocked.reason is BlockReason.NOT_TRIED and job.status.reason in _REASONS:
            return  # the answer of the cycle that tried it last is still the best one
        message = self._node_requests.last_message(blocked.uid)
        text = text_of(blocked, position=position, autoscaler=message)
        self._messages.set(job, reason=str(blocked.reason), message=text, position=position)

    def _observe(self, seconds: float, phase: str) -> None:
        self._metrics.scheduling.cycle_seconds.labels(phase=phase).observe(seconds)

    def _count(self, decisions: Decisions) -> None:
        self._metrics.scheduling.pending_jobs.clear()
        reasons = Counter[tuple[str, str]]()
        for blocked in decisions.blocked:
            job = self._state.jobs.get(blocked.key)
            # A queue that does not exist has any name that a tenant writes.
            exists = job is not None and self._state.queues.get(job.spec.queue) is not None
            reasons[job.spec.queue if job and exists else "", str(blocked.reason)] += 1
        for job in self._state.scheduling.jobs_without_priority_class():
            exists = self._state.queues.get(job.spec.queue) is not None
            reasons[job.spec.queue if exists else "", MISSING_PRIORITY_CLASS] += 1
        for (queue, reason), count in reasons.items():
            self._metrics.scheduling.pending_jobs.labels(queue=queue, reason=reason).set(count)


def _starting(decisions: Decisions) -> set[str]:
    return {placed.uid for placed in decisions.placed}


def log_cycle(decisions: Decisions, *, decide_seconds: float, started: float) -> None:
    """Log the numbers of decisions and their duration.

    Args:
        decisions: result of the cycle.
        decide_seconds: duration of the decision alone.
        started: monotonic time at which the cycle began.
    """
    log.info(
        "cycle",
        placed=len(decisions.placed),
        blocked=len(decisions.blocked),
        decide_ms=round(decide_seconds * 1000, 2),
        total_ms=round((time.perf_counter() - started) * 1000, 2),
    )


def next_look(*, settled: bool, retry_in: float | None, waits: bool, took: float) -> float | None:
    """Return the seconds until the next cycle without an event, or None.

    Args:
        settled: whether all was written.
        retry_in: seconds until time alone may change a decision. None: never.
        waits: whether any job waits.
        took: duration of this cycle's snapshot and decisions, in seconds.
    """
    looks = [] if settled else [RETRY_SECONDS]
    if retry_in is not None:
        looks.append(max(0.05, retry_in))
    if waits:
        looks.append(max(LOOK_SECONDS, LOOK_FACTOR * took))
    return min(looks, default=None)
