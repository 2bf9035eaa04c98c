"""Write the decisions of a cycle. Actions follow only from a written status.

A decision is written onto the version of the job that it was made from. If the job was written
since, the write conflicts, nothing happens, and the next cycle decides again.

Before a gang evicts or moves others, its own start is checked (`checked_starts`). A start that
would be refused counts as a failed start, and no job has to leave.

A preemption takes two steps. So a crash between any two writes nominates each node for at most one
job, and evicts no job without need. First the preemptor is nominated to its future nodes, which are
reserved for it from then on. Then the victims get `Disrupted`. An eviction is withdrawn when its
preemptor does not need the GPUs any more, or when the nodes that a job was to move to are taken.

A moving job is evicted and nominated to its new nodes in one write. Once its pods are gone it waits
like any nominated job. A gang of a template cannot save on request, so its second write also
releases its nodes.

    preemptor P needs n1, n2 of victim V
    write 1  P: nominated n1, n2       a crash here: the next cycle plans V's eviction again
    write 2  V: disruption by P        V saves, its pods end, P is placed on n1, n2

The gangs of a group are checked, nominated and given victims together, or none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.scheduler.checked_starts import CheckedStarts, RefusedStart
from drumline.controller.scheduler.evictions import (
    JobEviction,
    given_up_indices,
    is_preempted,
    nominated_in_vain,
    preemptor_name,
    preemptor_uid,
    reason_to_stay,
    still_needs_nodes,
)
from drumline.controller.scheduler.fault_memory import OnFault, write_each
from drumline.controller.scheduler.job_placements import Replacement, replacement, with_changes
from drumline.controller.scheduler.unwritten_statuses import UnwrittenStatuses
from drumline.controller.workloads.evictions import ForeignEvictions
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of, new_agent_image
from drumline.lifecycle.model.hardware import GpuShare
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, assignment_of, base_size, members_of
from drumline.lifecycle.model.roles import member_order
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.transitions import disruption, membership
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline_api.conditions import DisruptionKind, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_scheduler.decisions import (
    BlockReason,
    Decisions,
    Move,
    Placed,
    Preemption,
    QueueEviction,
    Victim,
)
from drumline_scheduler.decisions_by_job import JobPlacement, Resize, placements, resize
from drumline_scheduler.model import job_uid

log = logs.get("drumline.controller.scheduler.committer")

_GAVE_UP: Final = (Reason.PREEMPTED, Reason.QUEUE_STOPPED)

PlannedPreemption = tuple[Preemption, str]
"""A preemption and the message of its gang."""
Jobs = Mapping[str, Job]
"""Jobs in the versions of the cycle's snapshot, by uid."""


class Committer:
    """Writes decisions.

    Args:
        writer: writes statuses.
        foreign: evicts foreign pods.
        pods: platform settings of pods, for the image that is pinned at admission.
        epoch: epoch of this leader.
        signing_key: name of the key from which tokens of new gangs are derived.
        preemption_seconds: time for which a preempted job may save.
        metrics: counts decisions.
        job_events: writes events that users read.
        enqueue: wakes the reconciler for a job's key.
        priority_of: returns the effective priority of a job.
        share_of: returns the fraction of a pool's GPU that each GPU of a job is. None means 1.
        settled_status: returns the status that a job's plan reaches before its first action.
        announce: logs, counts and reports a written status.
        starts: checks the start of a gang before others are evicted or moved for it.
        unwritten: the jobs whose statuses could not be written.
    """

    def __init__(
        self,
        *,
        writer: StatusWriter,
        foreign: ForeignEvictions,
        pods: PodSettings,
        epoch: int,
        signing_key: str,
        preemption_seconds: float,
        metrics: Metrics,
        job_events: JobEvents,
        enqueue: Callable[[str], None],
        priority_of: Callable[[Job], int],
        share_of: Callable[[Job, str], GpuShare | None],
        settled_status: Callable[[Job], TrainingJobStatus],
        announce: Callable[[Job, TrainingJobStatus], None],
        starts: CheckedStarts,
        unwritten: UnwrittenStatuses,
    ) -> None:
        self._starts = starts
        self._unwritten = unwritten
        self._writer = writer
        self._foreign = foreign
        self._pods = pods
        self._epoch = epoch
        self._signing_key = signing_key
        self._preemption_seconds = preemption_seconds
        self._metrics = metrics
        self._job_events = job_events
        self._enqueue = enqueue
        self._priority_of = priority_of
        self._share_of = share_of
        self._settled_status = settled_status
        self._announce = announce

    async def carry_out(
        self, decisions: Decisions, *, jobs: Jobs, now: float, on_fault: OnFault | None = None
    ) -> bool:
        """Write the decisions. Return False if something must be decided again.

        Args:
            decisions: decisions of a cycle.
            jobs: the jobs in the versions of its snapshot.
            now: seconds since the epoch.
            on_fault: handles an exception on one job, by key and uid. None: it is raised.
        """
        # Phase 1: pair each decision with the job's version in the snapshot.
        reasons = {blocked.uid: blocked.message for blocked in decisions.blocked}
        preemptions = _by_group(
            [(each, reasons.get(each.uid, each.message)) for each in decisions.preemptions], jobs
        )
        given = [(jobs[each.uid], each) for each in placements(decisions)]
        starts = [(jobs[each.uid], each.start) for _, each in given if each.start is not None]
        promised = self._promised(preemptions, jobs, starts=starts, now=now)
        moves = [(jobs[each.uid], each) for each in decisions.moves]
        evictions = [(jobs[each.uid], each) for each in decisions.evictions]
        staying = [jobs[uid] for uid in decisions.stay]
        in_vain = nominated_in_vain(decisions.blocked, jobs)
        # Phase 2: write. The jobs differ, so all writes can run at once. Only a preemption has an
        # order inside: foreign pods, the preemptor, the victims.
        return await write_each(
            [
                *((job, partial(self._place_members, each, job, now=now)) for job, each in given),
                *(
                    (
                        jobs[planned[0][0].uid],
                        partial(
                            self._preempt,
                            planned,
                            jobs,
                            promised=before,
                            now=now,
                            on_fault=on_fault,
                        ),
                    )
                    for planned, before in zip(preemptions, promised, strict=True)
                ),
                *((job, partial(self._move, move, job, now=now)) for job, move in moves),
                *(
                    (job, partial(self._evict_for_queue, each, job, now=now))
                    for job, each in evictions
                ),
                *((job, partial(self._let_stay, job, now=now)) for job in staying),
                *(
                    (job, partial(self._write, job, disruption.nomination_cleared(job), now=now))
                    for job in in_vain
                ),
            ],
            on_fault=on_fault,
        )

    async def withdraw(
        self, jobs: Iterable[Job], *, now: float, on_fault: OnFault | None = None
    ) -> bool:
        """Withdraw the evictions whose preemptor does not need the GPUs any more.

        Args:
            jobs: all jobs, evicted jobs and preemptors included.
            now: Unix time in seconds.
            on_fault: called with a job whose withdrawal raised.
        """
        known = {job.uid: job for job in jobs}
        unneeded = [
            (job, partial(self._unneeded, job, now=now))
            for job in known.values()
            if is_preempted(job) and not still_needs_nodes(known.get(preemptor_uid(job)))
        ]
        return await write_each(unneeded, on_fault=on_fault)

    async def _unneeded(self, job: Job, *, now: float) -> bool:
        why = f"{preemptor_name(job)} no longer needs these GPUs"
        return await self._withdraw_eviction(job, why=why, now=now)

    async def _place_members(self, given: JobPlacement, job: Job, *, now: float) -> bool:
        if given.start is not None:
            return await self._place(given.start, job, surplus=given.surplus_placed, now=now)
        # Both changes of one job are one write: a crash in between must not lose one of them.
        moved, size = replacement(given, job), resize(given, smallest=base_size(job.status))
        changed = with_changes(job, moved=moved, size=size, epoch=self._epoch, now=now)
        if changed is job:
            return True
        if not await self._write(job, changed.status, now=now):
            return False
        if moved is not None:
            self._count_replaced(moved, changed)
        if size is not None:
            self._count_resized(size, job, changed)
        return True

    async def _place(self, placed: Placed, job: Job, *, surplus: Placed | None, now: float) -> bool:
        # Phase 1: the status, with all places of the gang and its surplus.
        beyond = () if surplus is None else surplus.assignment
        status = self._admitted(
            job,
            pool=placed.pool,
            nodes=placed.assignment,
            surplus_pool=None if surplus is None else surplus.pool,
            surplus=beyond,
            now=now,
        )
        if not await self._write(job, status, now=now):
            return False
        # Phase 2: metrics, event and log line. Only of a decision that was written.
        self._metrics.scheduling.gangs_placed.labels(
            queue=job.spec.queue, gpu_pool=placed.pool
        ).inc()
        queued_at = parse_timestamp(status.queued_at) if status.queued_at else now
        queued_at = max(queued_at, job.waits_since)
        self._metrics.scheduling.queue_wait_seconds.labels(queue=job.spec.queue).observe(
            max(
                0.0, now - queued_at
            )  # one that waited for others may count a part of a second more
        )
        domain = "/".join(placed.domain)
        pools = placed.pool if surplus is None else f"{placed.pool} and {surplus.pool}"
        self._job_events.placed(
            job,
            pool=pools,
            nodes=(*placed.assignment, *beyond),
            domain="" if beyond else domain,
        )
        log.info(
            "gang_placed",
            job=job.key,
            gpu_pool=placed.pool,
            nodes=len(placed.assignment),
            surplus_pool=None if surplus is None else surplus.pool,
            surplus_nodes=len(beyond),
            domain=domain,
            generation=status.generation,
        )
        return True

    def _admitted(
        self,
        job: Job,
        *,
        pool: str,
        nodes: Sequence[str],
        now: float,
        surplus_pool: str | None = None,
        surplus: Sequence[str] = (),
    ) -> TrainingJobStatus:
        """Return the status of a waiting job that gets these nodes."""
        return membership.admitted(
            job,
            pool=pool,
            nodes=member_order(job.spec, nodes),
            surplus_pool=surplus_pool,
            surplus=surplus,
            epoch=self._epoch,
            image=image_of(job, self._pods),
            agent_image=new_agent_image(job, self._pods),
            priority=self._priority_of(job),
            now=now,
            signing_key=self._signing_key if job.has_agents else None,
            share=self._share_of(job, pool),
        )

    def _count_replaced(self, moved: Replacement, job: Job) -> None:
        self._metrics.jobs.members_replaced.inc(len(moved.positions))
        log.info(
            "members_placed",
            job=job.key,
            nodes=[moved.nodes[position] for position in moved.positions[:8]],
            generation=job.status.generation,
        )

    def _count_resized(self, size: Resize, before: Job, after: Job) -> None:
        direction = "grown" if after.size > before.size else "shrunk"
        self._metrics.jobs.gangs_resized.labels(direction=direction).inc()
        log.info(
            "gang_resized",
            job=after.key,
            before=before.size,
            nodes=after.size,
            surplus_pool=size.surplus_pool,
            generation=after.status.generation,
        )

    async def _preempt(
        self,
        planned: Sequence[PlannedPreemption],
        jobs: Jobs,
        *,
        promised: Sequence[Job],
        now: float,
        on_fault: OnFault | None,
    ) -> bool:
        """Write the preemption of a gang, or those of all gangs of a group: all or none."""
        # Phase 1: check the starts, and evict foreign pods. Until here no job was asked to leave.
        if not await self._can_all_start(planned, jobs, promised=promised, now=now):
            return False
        for each, _ in planned:
            if not await self._foreign.evict(each, now=now):
                return False
        # Phase 2: nominate the preemptors. Their nodes are reserved from these writes on.
        for each, why in planned:
            status = disruption.nominated(
                jobs[each.uid],
                pool=each.pool,
                nodes=each.assignment,
                reason=str(BlockReason.WAITING_FOR_VICTIMS),
                message=why,
                now=now,
            )
            if not await self._write(jobs[each.uid], status, now=now):
                return False
        # Phase 3: the victims. After a crash the next cycle finds the nominations and continues.
        writes = [
            (
                job,
                partial(
                    self._preempt_victim,
                    victim,
                    job,
                    jobs[each.uid],
                    override=each.override,
                    now=now,
                ),
            )
            for each, _ in planned
            for victim in each.victims
            # foreign pods are evicted by now
            if (job := jobs.get(job_uid(victim.uid))) is not None
        ]
        return await write_each(writes, on_fault=on_fault)

    def _promised(
        self,
        preemptions: Sequence[Sequence[PlannedPreemption]],
        jobs: Jobs,
        *,
        starts: Iterable[tuple[Job, Placed]],
        now: float,
    ) -> list[Sequence[Job]]:
        """Return for each preemption the jobs of its namespace that start before its own.

        Their pods do not exist yet, so no ResourceQuota counts them. They have a place from this
        cycle, wait for their victims, or preempt before it in this cycle.
        """
        own = {each.uid for planned in preemptions for each, _ in planned}
        namespaces = {jobs[uid].namespace for uid in own}
        known: dict[str, list[Job]] = {name: [] for name in namespaces}

        def promise(job: Job, *, pool: str, nodes: Sequence[str]) -> None:
            if job.namespace in namespaces and job.status.assignment is None:
                status = self._admitted(job, pool=pool, nodes=nodes, now=now)
                known[job.namespace].append(replace(job, status=status))

        for job, placed in starts:
            promise(job, pool=placed.pool, nodes=placed.assignment)
        for job in jobs.values() if own else ():
            kept = job.status.nominated
            if kept is not None and job.uid not in own:
                promise(job, pool=kept.gpu_pool, nodes=kept.node_names())
        before: list[Sequence[Job]] = []
        for planned in preemptions:
            before.append(tuple(known[jobs[planned[0][0].uid].namespace]))
            for each, _ in planned:
                promise(jobs[each.uid], pool=each.pool, nodes=each.assignment)
        return before

    async def _can_all_start(
        self,
        planned: Sequence[PlannedPreemption],
        jobs: Jobs,
        *,
        promised: Sequence[Job],
        now: float,
    ) -> bool:
        """Return whether all preemptors could start, and all jobs that must move for them."""
        # All checks run at once: each of them is bounded by a time, and the cycle waits.
        starts = [self._started(jobs[each.uid], each, now=now) for each, _ in planned]
        victims = [victim for each, _ in planned for victim in each.victims]
        leaving = [
            _with_leaving_members(jobs[job_uid(victim.uid)], victim)
            for victim in victims
            if job_uid(victim.uid) in jobs
        ]
        refusals = await asyncio.gather(
            *(
                self._starts.refusal_of(
                    start,
                    now=now,
                    leaving=leaving,
                    # The first check counts the whole group against the quotas.
                    beside=() if number else starts[1:],
                    promised=() if number else promised,
                )
                for number, start in enumerate(starts)
            )
        )
        for (each, _), refusal in zip(planned, refusals, strict=True):
            if refusal is not None:
                await self._count_refusal(jobs[each.uid], refusal, now=now)
                return False
        movers = [jobs[job_uid(victim.uid)] for victim in victims if victim.moves_to]
        moves = [self._starts.refusal_of(job, now=now) for job in movers]
        return not any(await asyncio.gather(*moves))

    async def _count_refusal(self, job: Job, refusal: RefusedStart, *, now: float) -> None:
        """Count a failed start of a waiting gang, which its status shows and limits."""
        status = refusal.status(job, now=now)
        if status is not None and await self._write(job, status, now=now):
            self._starts.note(job, status, now=now)
            self._announce(job, status)

    def _started(self, job: Job, preemption: Preemption, *, now: float) -> Job:
        """Return the job as it would be once its victims have left."""
        if job.status.assignment is not None:  # a repair: its pods are like those that it has
            return job
        status = self._admitted(job, pool=preemption.pool, nodes=preemption.assignment, now=now)
        return replace(job, status=status)

    async def _move(self, move: Move, job: Job, *, now: float) -> bool:
        if await self._starts.refusal_of(job, now=now) is not None:
            return False
        eviction = JobEviction(
            by=str(move.why),
            by_uid=job.uid,
            message=f"moves to other nodes in pool {move.pool} ({move.why})",
            moves_to_pool=move.pool,
            moves_to=move.assignment,
        )
        evicted = await self._evict(job, eviction, now=now)
        if evicted:
            why, lost = str(move.why), round(move.gpu_seconds_lost, 1)
            self._metrics.jobs.moves.labels(reason=why).inc()
            log.info("gang_moves", job=job.key, gpu_pool=move.pool, why=why, gpu_seconds_lost=lost)
        return evicted

    async def _evict_for_queue(self, stopped: QueueEviction, job: Job, *, now: float) -> bool:
        eviction = JobEviction(
            by=f"queue {stopped.queue}",
            by_uid="",
            message=stopped.message,
            kind=DisruptionKind.QUEUE_STOPPED,
        )
        evicted = await self._evict(job, eviction, now=now)
        if evicted:
            why, risk = self._counted(stopped)
            queue = stopped.queue
            log.info("gang_leaves", job=job.key, queue=queue, why=why, gpu_seconds_at_risk=risk)
        return evicted

    async def _preempt_victim(
        self, victim: Victim, job: Job, preemptor: Job, *, override: str, now: float
    ) -> bool:
        why = f"{victim.why}: {override}" if override else str(victim.why)
        eviction = JobEviction(
            by=preemptor.key,
            by_uid=preemptor.uid,
            message=f"{preemptor.key} needs {victim.gpus} GPUs of this job ({why})",
            indices=given_up_indices(victim, job),
            moves_to_pool=victim.moves_to_pool,
            moves_to=victim.moves_to,
        )
        evicted = await self._evict(job, eviction, now=now)
        if evicted:
            why, risk = self._counted(victim)
            by = preemptor.key
            log.info("gang_preempted", job=job.key, by=by, why=why, gpu_seconds_at_risk=risk)
        return evicted

    def _counted(self, eviction: Victim | QueueEviction) -> tuple[str, float]:
        """Count an eviction. Return its reason and the GPU-seconds at risk, for its log line."""
        self._metrics.jobs.preemptions.labels(reason=str(eviction.why)).inc()
        return str(eviction.why), round(eviction.gpu_seconds_lost, 1)

    async def _evict(self, job: Job, eviction: JobEviction, *, now: float) -> bool:
        """Request a job to save and release its nodes. Nominate it to new nodes if it moves."""
        # Phase 1: the notice, with its deadline.
        status = disruption.disrupted(
            job,
            kind=eviction.kind,
            by=eviction.by,
            by_uid=eviction.by_uid,
            message=eviction.message,
            deadline=now + self._preemption_seconds,
            indices=eviction.indices,
            now=now,
        )
        # Phase 2: reserve the destination in the same write, or another gang could take it.
        if eviction.moves_to:
            pool = eviction.moves_to_pool
            status = disruption.nominated_for_move(status, pool=pool, nodes=eviction.moves_to)
        # Phase 3: pods of a template cannot be asked to save. Write their release at once.
        if not job.runs_trainer:
            final = self._settled_status(replace(job, status=status))
            if final.assignment is None and final.reason in _GAVE_UP:
                status = final
        if not await self._write(job, status, now=now):
            return False
        self._announce(job, status)
        return True

    async def _let_stay(self, job: Job, *, now: float) -> bool:
        why = reason_to_stay(job)
        return why is None or await self._withdraw_eviction(job, why=why, now=now)

    async def _withdraw_eviction(self, job: Job, *, why: str, now: float) -> bool:
        status = disruption.disruption_withdrawn(job, message=why, now=now)
        if not await self._write(job, status, now=now):
            return False
        log.info("preemption_withdrawn", job=job.key, why=why)
        return True

    async def _write(self, job: Job, status: TrainingJobStatus, *, now: float) -> bool:
        """Write a status and wake the job. Return False if the decision came too late.

        Raises:
            StatusNotWrittenError: the API server did not write it. The job is left alone for a
                while, or its place would be decided again and again, and no other job would get it.
        """
        self._unwritten.ensure_writable(job, now=now)
        try:
            await self._writer.write(job, status)
        except NotLeader:
            raise
        except NotFound:
            return True
        except Conflict:
            return False
        except KubeError as error:
            raise self._unwritten.note(job, error, now=now) from error
        self._enqueue(job.key)
        return True


def _by_group(
    preemptions: Iterable[PlannedPreemption], jobs: Jobs
) -> list[list[PlannedPreemption]]:
    """Return the preemptions of each group together, and all others alone."""
    planned: dict[tuple[str, str, str], list[PlannedPreemption]] = {}
    for each, why in preemptions:
        job = jobs[each.uid]
        # A job that ran before does not start with its group again.
        group = job.spec.group.name if job.spec.group and job.status.generation is None else ""
        key = (job.namespace, group, "" if group else job.uid)
        planned.setdefault(key, []).append((each, why))
    return list(planned.values())


def _with_leaving_members(job: Job, victim: Victim) -> Job:
    """Return the job with only the members that it gives up."""
    indices, assignment = given_up_indices(victim, job), job.status.assignment
    if indices is None or assignment is None:
        return job
    status = job.status.model_copy(
        update={"assignment": assignment_of(assignment.gpu_pool, _members(job, indices))}
    )
    return replace(job, status=status)


def _members(job: Job, indices: Iterable[int]) -> list[GangMember]:
    leaving = frozenset(indices)
    return [member for member in members_of(job.status) if member.index in leaving]
