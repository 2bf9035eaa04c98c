"""Apply the decisions of a cycle to the simulated cluster, as the operator does to a real cluster.

A preempted job gets notice immediately and is evicted `save_seconds` later, or `leave_seconds`
later if it saves nothing. Until then it keeps its slots and makes no progress. The preemptor has
its future slots as `nominated`. A job that moves is evicted with its new slots nominated for it. A
job that shrinks runs on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from drumline_scheduler import Decisions, Move, Placed, Preemption, Victim
from drumline_scheduler.decisions_by_job import JobPlacement, kept_places, placements, resize
from drumline_scheduler.model import job_uid
from drumline_simulator.engine.simulated_cluster import SimulatedCluster
from drumline_simulator.engine.simulated_job import SimulatedJob, Stall
from drumline_simulator.results.outcome import Eviction
from drumline_simulator.results.time_account import Cause
from drumline_simulator.workload import Execution


class DecisionApplier:
    """Applies decisions and counts evictions, moves and resizes."""

    def __init__(
        self,
        *,
        cluster: SimulatedCluster,
        execution: Execution,
        schedule_end: Callable[[SimulatedJob], None],
        schedule_eviction: Callable[[SimulatedJob, float], None],
    ) -> None:
        """Apply decisions to `cluster`.

        Args:
            cluster: state that is changed.
            execution: time to save.
            schedule_end: called when a job starts or restarts, and will end at
                `SimulatedJob.ends_at`.
            schedule_eviction: called when a job got notice, with the time of its eviction.
        """
        self._cluster = cluster
        self._execution = execution
        self._schedule_end = schedule_end
        self._schedule_eviction = schedule_eviction
        self.evictions: list[Eviction] = []
        self.moved = 0
        self.resized = 0

    def apply(self, decisions: Decisions, now: float) -> None:
        """Apply all decisions of one cycle at time `now`."""
        # Placements first: they use free slots, which preemptions of this cycle do not free yet.
        for given in placements(decisions):
            if given.start is not None:
                self._start(given.start, surplus=given.surplus_placed, now=now)
            else:
                self._change(given, now)
        # Victims keep their slots until they have saved, so no placement depends on them.
        for preemption in decisions.preemptions:
            self._preempt(preemption, now)
        for move in decisions.moves:
            self._move(move, now)
        # A stay cancels a move that no longer helps, so the end must be scheduled again.
        for uid in decisions.stay:
            self._cluster.cancel_move(self._cluster.running[uid], now)
            self._schedule_end(self._cluster.running[uid])

    def _start(self, placed: Placed, *, surplus: Placed | None, now: float) -> None:
        job = self._cluster.waiting[placed.uid]
        self._cluster.start(
            job,
            pool=placed.pool,
            nodes=[*placed.assignment, *(surplus.assignment if surplus else ())],
            surplus_pool=surplus.pool if surplus else "",
            now=now,
        )
        self._schedule_end(job)

    def _change(self, given: JobPlacement, now: float) -> None:
        """Replace places of a running job, change its size, or both."""
        job = self._cluster.running[given.uid]
        # The first positions are the smallest size. Positions behind them are surplus.
        first = _smallest(job)
        nodes, unanswered = _replaced(given, job)
        size = resize(given, smallest=first)
        gives_up = job.admitted.giving_up if job.admitted else frozenset[int]()
        # A node that was to go has not gone yet: it saves, and goes on elsewhere.
        announced = size is None and job.admitted is not None and not job.admitted.lost
        # It can only move to a node that is there. Until its own is lost it runs on.
        if announced and not self._cluster.leases.are_ready(nodes, now=now):
            return
        # A resize restarts the processes, so the trainer saves first.
        if announced or size is not None:
            job.save(now)
            if job.admitted is not None and not job.admitted.lost:
                job.cause = Cause.RESIZE if size is not None else Cause.RECLAIM
        if size is not None:
            # Kept positions come first, in their order.
            nodes = [*(nodes[position] for position in size.kept), *size.added]
        self._cluster.reassign(
            job,
            nodes=nodes,
            surplus_pool=(size.surplus_pool or "") if size else "",
            # A resize replaces all positions, so none is unanswered after it.
            unanswered=unanswered if size is None else (),
            now=now,
        )
        if size is not None:
            self.resized += 1
        elif announced:
            # The save delays the job after its reassignment, not before it.
            job.stall([(Stall.SAVING, self._execution.save_seconds)], now=now)
        if gives_up and size is None:  # a part that was not looked at is still to leave
            self._shrink(job, kept=set(range(len(nodes))) - gives_up, now=now)
        else:
            self._schedule_end(job)

    def _preempt(self, preemption: Preemption, now: float) -> None:
        # A pending preemptor gets a whole assignment. A running one only replaces its lost
        # positions.
        job = self._cluster.waiting.get(preemption.uid)
        if job is not None:
            job.gang = replace(
                job.gang, nominated=preemption.assignment, nominated_pool=preemption.pool
            )
        else:
            self._cluster.nominate(
                self._cluster.running[preemption.uid],
                nominated={i: preemption.assignment[i] for i in preemption.replaced},
                pool=preemption.pool,
            )
        for victim in preemption.victims:
            self._evict(victim, now)
        self.evictions.append(
            Eviction(
                at=now,
                key=preemption.key,
                victims=tuple(victim.key for victim in preemption.victims),
                gpus=sum(victim.gpus for victim in preemption.victims),
            )
        )

    def _evict(self, victim: Victim, now: float) -> None:
        job = self._cluster.running[job_uid(victim.uid)]
        if job.is_leaving:  # its surplus goes with it
            return
        # None: the victim is the whole job.
        kept = kept_places(victim, smallest=_smallest(job))
        if kept is not None:
            job.save(now)
            self._shrink(job, kept=kept, now=now)
            return
        if victim.moves_to:
            self._cluster.nominate(
                job, nominated=dict(enumerate(victim.moves_to)), pool=victim.moves_to_pool
            )
            self.moved += 1
        else:
            # Only a preemption counts against the limit. A move is not one.
            job.preempted_at.append(now)
        cause = Cause.MOVE if victim.moves_to else Cause.PREEMPTION
        self._send_notice(job, now, cause=cause)

    def _shrink(self, job: SimulatedJob, *, kept: Collection[int], now: float) -> None:
        self._cluster.begin_shrink(job, kept=kept)
        # The job runs on at its smaller size, so its end moves at once.
        self._schedule_end(job)
        self._schedule_eviction(job, now + self._execution.save_seconds)

    def _move(self, move: Move, now: float) -> None:
        job = self._cluster.running[move.uid]
        self._cluster.nominate(job, nominated=dict(enumerate(move.assignment)), pool=move.pool)
        self.moved += 1
        self._send_notice(job, now, cause=Cause.MOVE)

    def _send_notice(self, job: SimulatedJob, now: float, *, cause: Cause) -> None:
        job.settle(now)
        job.cause = cause
        seconds = self._execution.save_seconds
        # A job with time to save loses nothing. Without it, work since the checkpoint is lost.
        if seconds:
            job.save(now)
        else:
            # Snapshots are in the memory of the pods that leave, so they do not help.
            job.roll_back(now=now, to_snapshot=False)
            seconds = self._execution.leave_seconds
        self._cluster.begin_eviction(job, now)
        self._schedule_eviction(job, now + seconds)


def _smallest(job: SimulatedJob) -> int:
    """Return the number of places that are not surplus."""
    return job.split.smallest(job.admitted, gang=job.gang) if job.admitted else 0


def _replaced(given: JobPlacement, job: SimulatedJob) -> tuple[list[str], range]:
    """Return all its nodes by position, and the positions without a decision."""
    nodes, first = list(job.admitted.assignment if job.admitted else ()), _smallest(job)
    # Each branch removes the positions that its decision answers.
    unanswered = range(len(nodes))
    if given.placed is not None:
        nodes[:first] = given.placed.assignment
        unanswered = unanswered[first:]
    if given.surplus_placed is not None and given.surplus_placed.replaced:
        nodes[first:] = given.surplus_placed.assignment
        unanswered = unanswered[:first] if given.placed is None else range(0)
    return nodes, unanswered
