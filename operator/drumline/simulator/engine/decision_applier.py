"""Applies the decisions of a cycle to the simulated cluster, as the operator does to a real one.

A preempted job gets notice at once and is evicted `save_seconds` later, or `leave_seconds` where it
saves nothing; until then it keeps its slots and makes no progress. The preemptor has the slots it
will get as `nominated`. A job that moves is evicted with its new slots nominated for it; a job that
shrinks runs on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drumline.scheduling import Decisions, Move, Placed, Preemption, Resized, Victim
from drumline.simulator.engine.simulated_cluster import SimulatedCluster
from drumline.simulator.engine.simulated_job import SimulatedJob, Stall
from drumline.simulator.results.outcome import Eviction
from drumline.simulator.workload import Execution


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
        """Applies decisions to `cluster`.

        Args:
            cluster: the state that is changed.
            execution: how long saving takes.
            schedule_end: called when a job (re)starts and will end at `SimulatedJob.ends_at`.
            schedule_eviction: called when a job got notice, with the time it will be gone.
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
        for placed in decisions.placed:
            self._place(placed, now)
        for resized in decisions.resized:
            self._resize(resized, now)
        for preemption in decisions.preemptions:
            self._preempt(preemption, now)
        for move in decisions.moves:
            self._move(move, now)
        for uid in decisions.stay:
            self._cluster.cancel_move(self._cluster.running[uid], now)
            self._schedule_end(self._cluster.running[uid])

    def _place(self, placed: Placed, now: float) -> None:
        cluster = self._cluster
        job = cluster.waiting.get(placed.uid)
        if job is not None:
            cluster.start(job, pool=placed.pool, nodes=placed.assignment, now=now)
        else:
            job = cluster.running[placed.uid]
            announced = job.admitted is not None and not job.admitted.lost
            if announced:  # its node is about to go: it saves, and goes on elsewhere
                job.save(now)
            cluster.reassign(job, nodes=placed.assignment, now=now)
            if announced:
                job.stall([(Stall.SAVING, self._execution.save_seconds)], now=now)
        self._schedule_end(job)

    def _resize(self, resized: Resized, now: float) -> None:
        job = self._cluster.running[resized.uid]
        held = job.admitted.assignment if job.admitted else ()
        nodes = (*(held[position] for position in resized.kept), *resized.added)
        job.save(now)
        self._cluster.reassign(job, nodes=nodes, now=now)
        self.resized += 1
        self._schedule_end(job)

    def _preempt(self, preemption: Preemption, now: float) -> None:
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
        job = self._cluster.running[victim.uid]
        if victim.kept:
            job.save(now)
            self._cluster.begin_shrink(job, kept=victim.kept)
            self._schedule_end(job)
            self._schedule_eviction(job, now + self._execution.save_seconds)
            return
        if victim.moves_to:
            self._cluster.nominate(
                job, nominated=dict(enumerate(victim.moves_to)), pool=victim.moves_to_pool
            )
            self.moved += 1
        else:
            job.preempted_at.append(now)
        self._send_notice(job, now)

    def _move(self, move: Move, now: float) -> None:
        job = self._cluster.running[move.uid]
        self._cluster.nominate(job, nominated=dict(enumerate(move.assignment)), pool=move.pool)
        self.moved += 1
        self._send_notice(job, now)

    def _send_notice(self, job: SimulatedJob, now: float) -> None:
        seconds = self._execution.save_seconds
        if seconds:
            job.save(now)
        else:
            job.roll_back(now=now, to_snapshot=False)
            seconds = self._execution.leave_seconds
        self._cluster.begin_eviction(job, now)
        self._schedule_eviction(job, now + seconds)
