"""The scheduler loop: snapshot, decide, write. The deciding is `drumline.scheduling`'s.

Woken by events, it lets a burst of them settle, decides once, writes the admissions at once and in
parallel, and only then looks again: what it wrote is assumed by then, so no capacity is given away
twice. A write that lost (409) changes nothing; the next cycle sees why.

A waiting job's status is written at once when its reason changes; a message whose numbers moved is
refreshed at most once a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from drumline.controller.clusterstate import ClusterState
from drumline.controller.notices import Notices
from drumline.controller.reconciler import StatusWriter
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.lifecycle import status as to
from drumline.lifecycle.job import seconds
from drumline.lifecycle.pods import PodSettings, image_of
from drumline.scheduling.cycle import decide
from drumline.scheduling.decisions import Blocked, Decisions, Placed
from drumline.scheduling.model import Policy
from drumline.telemetry import logs

if TYPE_CHECKING:
    from drumline.lifecycle.job import Job
    from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.scheduler")

MIN_SETTLE_SECONDS = 0.005
"""Jobs arrive in bursts of events; deciding once for many is cheaper and fairer."""
MAX_SETTLE_SECONDS = 0.25
PACE = 4
"""A pause of that many times the last decision: deciding takes a fifth of one core at most."""
MESSAGE_REFRESH_SECONDS = 60.0
RETRY_SECONDS = 1.0
FAILED_CYCLE_SECONDS = 5.0
PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"


class SchedulerLoop:
    """Gives waiting jobs their places.

    Args:
        state: the caches.
        writer: how a status is written.
        pods: for the image that is pinned at admission.
        epoch: this leader's epoch.
        metrics: where cycles are timed and jobs counted.
        notices: what users are told.
        clock: seconds since the epoch.
        policy: the choices of the cluster's owner.
    """

    def __init__(
        self,
        *,
        state: ClusterState,
        writer: StatusWriter,
        pods: PodSettings,
        epoch: int,
        metrics: Metrics,
        notices: Notices,
        clock: Callable[[], float],
        wake: asyncio.Event,
        enqueue: Callable[[str], None],
        policy: Policy | None = None,
    ) -> None:
        self._state = state
        self._writer = writer
        self._pods = pods
        self._epoch = epoch
        self._metrics = metrics
        self._notices = notices
        self._clock = clock
        self._wake = wake
        self._enqueue = enqueue
        self._policy = policy or Policy()
        self._said_at: dict[str, float] = {}
        self._decided_in = 0.0

    async def run(self) -> None:
        """Cycle whenever woken, or when a job's backoff ends; never returns."""
        delay: float | None = None
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                pass
            pause = max(MIN_SETTLE_SECONDS, min(MAX_SETTLE_SECONDS, PACE * self._decided_in))
            await asyncio.sleep(pause)
            self._wake.clear()
            try:
                delay = await self.cycle()
            except NotLeader:
                raise
            except Exception:  # whatever one object did to it, the next cycle may do without
                log.exception("cycle_failed", retry_in_seconds=FAILED_CYCLE_SECONDS)
                delay = FAILED_CYCLE_SECONDS

    async def cycle(self) -> float | None:
        """One cycle; returns in how many seconds the next is due without a wake-up."""
        started = time.perf_counter()
        snapshot, pending = self._state.snapshot(), self._state.pending()
        for key, problem in self._state.left_out.items():
            log.warning("job_left_out", job=key, why=problem)
        self._state.left_out.clear()
        gathered = time.perf_counter()
        now = self._clock()
        decisions = decide(snapshot=snapshot, pending=pending, policy=self._policy, now=now)
        decided = time.perf_counter()
        self._decided_in = decided - started
        retry = await self._commit(decisions, now=now)
        self._observe(gathered - started, "snapshot")
        self._observe(decided - gathered, "decide")
        self._observe(time.perf_counter() - decided, "commit")
        self._count(decisions)
        self._forget_gone(decisions)
        if decisions.placed:
            log.info(
                "cycle",
                placed=len(decisions.placed),
                blocked=len(decisions.blocked),
                decide_ms=round((decided - gathered) * 1000, 2),
                total_ms=round((time.perf_counter() - started) * 1000, 2),
            )
        looks = [RETRY_SECONDS] if retry else []
        if decisions.retry_at is not None:
            looks.append(max(0.05, decisions.retry_at - now))
        return min(looks) if looks else None

    def _forget_gone(self, decisions: Decisions) -> None:
        waiting = {blocked.uid for blocked in decisions.blocked}
        self._said_at = {uid: at for uid, at in self._said_at.items() if uid in waiting}

    async def _commit(self, decisions: Decisions, *, now: float) -> bool:
        """Write what was decided; True when something has to be tried again."""
        placed = await asyncio.gather(*(self._admit(p, now=now) for p in decisions.placed))
        said = await asyncio.gather(
            *(self._say(blocked, now=now) for blocked in decisions.blocked),
            *(self._say_class_missing(job, now=now) for job in self._state.queued_without_class()),
        )
        return not all([*placed, *said])

    async def _admit(self, placed: Placed, *, now: float) -> bool:
        job = self._state.job(placed.key)
        if job is None or job.uid != placed.uid:
            return True
        status = to.admitted(
            job,
            pool=placed.pool,
            nodes=placed.assignment,
            epoch=self._epoch,
            image=image_of(job, self._pods),
            now=now,
        )
        if not await self._write(job, status):
            return False
        self._said_at.pop(job.uid, None)
        self._metrics.placed.labels(queue=job.spec.queue, gpu_pool=placed.pool).inc()
        queued_at = seconds(status.queued_at) if status.queued_at else now
        self._metrics.queue_wait_seconds.labels(queue=job.spec.queue).observe(now - queued_at)
        domain = "/".join(placed.domain)
        self._notices.placed(job, pool=placed.pool, nodes=placed.assignment, domain=domain)
        log.info(
            "gang_placed",
            job=job.key,
            gpu_pool=placed.pool,
            nodes=len(placed.assignment),
            domain=domain,
            generation=status.generation,
        )
        self._enqueue(job.key)
        return True

    async def _say(self, blocked: Blocked, *, now: float) -> bool:
        job = self._state.job(blocked.key)
        if job is None or job.uid != blocked.uid:
            return True
        return await self._wait(job, str(blocked.reason), blocked.message, now=now)

    async def _say_class_missing(self, job: Job, *, now: float) -> bool:
        name = job.spec.priority_class_name
        text = f"priorityClassName {name!r} does not exist; create it or name another"
        return await self._wait(job, PRIORITY_CLASS_NOT_FOUND, text, now=now)

    async def _wait(self, job: Job, reason: str, message: str, *, now: float) -> bool:
        before = job.status
        if (before.reason, before.message) == (reason, message):
            return True
        due = self._said_at.get(job.uid, 0.0) + MESSAGE_REFRESH_SECONDS
        if before.reason == reason and now < due:
            return True
        self._said_at[job.uid] = now
        status = to.waiting(job, reason=reason, message=message, now=now)
        if before.reason != reason:
            log.info("gang_waits", job=job.key, reason=reason, message=message)
            self._notices.waits(job, reason=reason, message=message)
        return await self._write(job, status)

    async def _write(self, job: Job, status: to.TrainingJobStatus) -> bool:
        try:
            await self._writer.write(job, status)
        except NotLeader:
            raise
        except NotFound:
            return True
        except Conflict:
            return False
        except KubeError as error:
            log.warning("status_write_failed", job=job.key, error=str(error))
            return False
        return True

    def _observe(self, seconds: float, phase: str) -> None:
        self._metrics.cycle_seconds.labels(phase=phase).observe(seconds)

    def _count(self, decisions: Decisions) -> None:
        self._metrics.pending.clear()
        reasons = Counter(str(blocked.reason) for blocked in decisions.blocked)
        for reason, count in reasons.items():
            self._metrics.pending.labels(reason=reason).set(count)
