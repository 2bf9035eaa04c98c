"""Carrying out what a cycle decided: every decision becomes status before anything follows from it.

A decision is written onto the very version of the job that it was made from: when somebody wrote
the job since, the write fails, nothing has happened, and the next cycle decides anew.

A preemption takes two steps, so that a crash between any two writes leaves places promised to one
job at most and tells nobody to leave for nothing: first the preemptor's future places (from then on
held against all others), then the victims' `Disrupted`. Whoever was told to leave for a job that
needs it no more may stay, and so may one that was to move and has nowhere to go. A job that moves
is told to leave and promised its new places in one write; once its pods are gone it waits as any
other that places are kept for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from drumline.api.conditions import DisruptionKind
from drumline.api.jobstatus import TrainingJobStatus
from drumline.controller.status.job_events import JobEvents
from drumline.controller.status.writer import StatusWriter
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.plan.eligibility import is_queued
from drumline.lifecycle.transitions import disruption as yielding
from drumline.lifecycle.transitions import membership as memberships
from drumline.scheduling.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Move,
    Placed,
    Preemption,
    Resized,
    Victim,
)
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.scheduler.committer")

Jobs = Mapping[str, "Job"]
"""By uid, as they were when the cycle looked."""


class Committer:
    """Writes decisions.

    Args:
        writer: how a status is written.
        pods: for the image that is pinned at admission.
        epoch: this leader's epoch.
        preemption_seconds: how long a job that is preempted may take to save.
        metrics: where decisions are counted.
        job_events: what users are told.
        enqueue: wakes the reconciler for a job's key.
    """

    def __init__(
        self,
        *,
        writer: StatusWriter,
        pods: PodSettings,
        epoch: int,
        preemption_seconds: float,
        metrics: Metrics,
        job_events: JobEvents,
        enqueue: Callable[[str], None],
    ) -> None:
        self._writer = writer
        self._pods = pods
        self._epoch = epoch
        self._preemption_seconds = preemption_seconds
        self._metrics = metrics
        self._job_events = job_events
        self._enqueue = enqueue

    async def carry_out(self, decisions: Decisions, *, jobs: Jobs, now: float) -> bool:
        """Write what was decided; False when something has to be decided again."""
        reasons = {blocked.uid: blocked.message for blocked in decisions.blocked}
        done = await asyncio.gather(
            *(self._place(placed, jobs[placed.uid], now=now) for placed in decisions.placed),
            *(self._resize(resized, jobs[resized.uid], now=now) for resized in decisions.resized),
            *(
                self._preempt(each, jobs, why=reasons.get(each.uid, each.message), now=now)
                for each in decisions.preemptions
            ),
            *(self._move(move, jobs[move.uid], now=now) for move in decisions.moves),
            *(self._go_nowhere(jobs[uid], now=now) for uid in decisions.stay),
            *(self._give_up_promise(blocked, jobs[blocked.uid]) for blocked in decisions.blocked),
        )
        return all(done)

    async def withdraw(self, jobs: Iterable[Job], *, now: float) -> bool:
        """Let those stay that were told to leave for a job which needs it no more."""
        known = {job.uid: job for job in jobs}
        done = await asyncio.gather(
            *(
                self._let_stay(job, why=f"{_by(job)} does not need these GPUs any more", now=now)
                for job in known.values()
                if _gives_way(job) and not _is_promised(known.get(_preemptor(job)))
            )
        )
        return all(done)

    async def _place(self, placed: Placed, job: Job, *, now: float) -> bool:
        if placed.replaced:
            return await self._replace(placed, job, now=now)
        status = memberships.admitted(
            job,
            pool=placed.pool,
            nodes=placed.assignment,
            epoch=self._epoch,
            image=image_of(job, self._pods),
            now=now,
        )
        if not await self._write(job, status):
            return False
        self._metrics.scheduling.gangs_placed.labels(
            queue=job.spec.queue, gpu_pool=placed.pool
        ).inc()
        queued_at = parse_timestamp(status.queued_at) if status.queued_at else now
        self._metrics.scheduling.queue_wait_seconds.labels(queue=job.spec.queue).observe(
            now - queued_at
        )
        domain = "/".join(placed.domain)
        self._job_events.placed(job, pool=placed.pool, nodes=placed.assignment, domain=domain)
        log.info(
            "gang_placed",
            job=job.key,
            gpu_pool=placed.pool,
            nodes=len(placed.assignment),
            domain=domain,
            generation=status.generation,
        )
        return True

    async def _replace(self, placed: Placed, job: Job, *, now: float) -> bool:
        nodes = placed.assignment
        status = memberships.members_replaced(
            job, nodes=nodes, replaced=placed.replaced, epoch=self._epoch, now=now
        )
        if not await self._write(job, status):
            return False
        self._metrics.jobs.members_replaced.inc(len(placed.replaced))
        log.info(
            "members_placed",
            job=job.key,
            nodes=[nodes[position] for position in placed.replaced[:8]],
            generation=status.generation,
        )
        return True

    async def _resize(self, resized: Resized, job: Job, *, now: float) -> bool:
        kept, added = resized.kept, resized.added
        status = memberships.resized(job, kept=kept, added=added, epoch=self._epoch, now=now)
        if not await self._write(job, status):
            return False
        grown = len(kept) + len(added) > job.size
        self._metrics.jobs.gangs_resized.labels(direction="grown" if grown else "shrunk").inc()
        log.info(
            "gang_resized",
            job=job.key,
            before=job.size,
            nodes=len(kept) + len(added),
            generation=status.generation,
        )
        return True

    async def _preempt(self, preemption: Preemption, jobs: Jobs, *, why: str, now: float) -> bool:
        preemptor = jobs[preemption.uid]
        status = yielding.nominated(
            preemptor,
            pool=preemption.pool,
            nodes=preemption.assignment,
            reason=str(BlockReason.WAITING_FOR_VICTIMS),
            message=why,
            now=now,
        )
        if not await self._write(preemptor, status):
            return False
        victims = [self._disrupt(v, jobs[v.uid], preemptor, now=now) for v in preemption.victims]
        return all(await asyncio.gather(*victims))

    async def _move(self, move: Move, job: Job, *, now: float) -> bool:
        status = yielding.disrupted(
            job,
            kind=DisruptionKind.PREEMPTION,
            by=str(move.why),
            by_uid=job.uid,
            message=f"moves to other nodes in pool {move.pool} ({move.why})",
            deadline=now + self._preemption_seconds,
            now=now,
        )
        status = yielding.nominated_for_move(status, pool=move.pool, nodes=move.assignment)
        if not await self._write(job, status):
            return False
        self._metrics.jobs.moves.labels(reason=str(move.why)).inc()
        self._job_events.became(job, status)
        log.info(
            "gang_moves",
            job=job.key,
            gpu_pool=move.pool,
            why=str(move.why),
            gpu_seconds_lost=round(move.gpu_seconds_lost, 1),
        )
        return True

    async def _disrupt(self, victim: Victim, job: Job, preemptor: Job, *, now: float) -> bool:
        text = f"{preemptor.key} needs {victim.gpus} GPUs of this job ({victim.why})"
        status = yielding.disrupted(
            job,
            kind=DisruptionKind.PREEMPTION,
            by=preemptor.key,
            by_uid=preemptor.uid,
            message=text,
            deadline=now + self._preemption_seconds,
            indices=_given_up(victim, job),
            now=now,
        )
        if victim.moves_to:
            pool = victim.moves_to_pool
            status = yielding.nominated_for_move(status, pool=pool, nodes=victim.moves_to)
        if not await self._write(job, status):
            return False
        self._metrics.jobs.preemptions.labels(reason=str(victim.why)).inc()
        self._job_events.became(job, status)
        log.info(
            "gang_preempted",
            job=job.key,
            by=preemptor.key,
            why=str(victim.why),
            gpu_seconds_at_risk=round(victim.gpu_seconds_lost, 1),
        )
        return True

    async def _give_up_promise(self, blocked: Blocked, job: Job) -> bool:
        """Places are held only for a job that others are leaving for."""
        waits = blocked.reason is BlockReason.WAITING_FOR_VICTIMS
        if waits or job.status.nominated is None:
            return True
        return await self._write(job, yielding.nomination_cleared(job))

    async def _go_nowhere(self, job: Job, *, now: float) -> bool:
        if not _gives_way(job):
            return True
        return await self._let_stay(job, why="the nodes it was to move to are taken", now=now)

    async def _let_stay(self, job: Job, *, why: str, now: float) -> bool:
        status = yielding.disruption_withdrawn(job, message=why, now=now)
        if not await self._write(job, status):
            return False
        log.info("preemption_withdrawn", job=job.key, why=why)
        return True

    async def _write(self, job: Job, status: TrainingJobStatus) -> bool:
        """Write a status and wake the job; False when the decision came too late."""
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
        self._enqueue(job.key)
        return True


def _gives_way(job: Job) -> bool:
    disruption = job.status.disruption
    return disruption is not None and disruption.kind is DisruptionKind.PREEMPTION


def _by(job: Job) -> str:
    return job.status.disruption.by if job.status.disruption else "nobody"


def _preemptor(job: Job) -> str:
    return job.status.disruption.by_uid if job.status.disruption else ""


def _given_up(victim: Victim, job: Job) -> list[int] | None:
    """Indices of the members that an elastic gang gives up; None: all of it leaves."""
    if not victim.kept:
        return None
    kept = frozenset(victim.kept)
    return [one.index for at, one in enumerate(members_of(job.status)) if at not in kept]


def _is_promised(preemptor: Job | None) -> bool:
    """Whether this job still waits for the places that others, or it itself, are to leave."""
    if preemptor is None or preemptor.status.nominated is None:
        return False
    if preemptor.finished or preemptor.deleting:
        return False
    return is_queued(preemptor) or preemptor.status.assignment is not None
