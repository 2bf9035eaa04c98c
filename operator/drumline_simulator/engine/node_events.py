"""Apply events of nodes: announced and sudden ends, returns, and faults of single processes.

The scheduler knows the end of a node immediately. The detection time is part of the time until the
job runs again. A job with a lost node waits for another node, and releases its other nodes after
`Execution.broken_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from drumline_scheduler import Node
from drumline_simulator.engine.simulated_cluster import SimulatedCluster
from drumline_simulator.engine.simulated_job import SimulatedJob, Stall
from drumline_simulator.results.time_account import Cause
from drumline_simulator.workload import Execution, Outage, ProcessFault

RECLAIMED = "spot reclaim"


class NodeEvents:
    """Applies events of nodes to the jobs on them."""

    def __init__(
        self,
        *,
        cluster: SimulatedCluster,
        nodes: Iterable[Node],
        execution: Execution,
        schedule_end: Callable[[SimulatedJob], None],
        schedule_give_up: Callable[[SimulatedJob, float], None],
    ) -> None:
        """Apply events to `cluster`.

        Args:
            cluster: state that is changed.
            nodes: nodes of the cluster.
            execution: cost of faults.
            schedule_end: called when the end of a running job changes.
            schedule_give_up: called when a job lost a node, with the time at which it gives up.
        """
        self._cluster = cluster
        self._gpus = {node.name: node.allocatable.gpus for node in nodes}
        self._execution = execution
        self._schedule_end = schedule_end
        self._schedule_give_up = schedule_give_up

    def announce(self, outage: Outage) -> None:
        """Announce the end of a node. No job starts there, and its jobs may move."""
        self._cluster.set_ready(outage.node, ready=True, closed=RECLAIMED)
        for job in self._cluster.jobs_on_node(outage.node):
            if not job.is_leaving:
                job.displace(outage.node)

    def lose(self, outage: Outage, *, now: float) -> None:
        """Remove a node. Its jobs have saved if the end was announced early enough."""
        saves = 0 < self._execution.save_seconds <= outage.notice_seconds
        for job in self._cluster.jobs_on_node(outage.node):
            if job.is_shrinking:
                self._cluster.finish_shrink(job, now)
                self._schedule_end(job)
            lost = job.positions(outage.node)
            if job.is_leaving or not lost:
                continue
            # Time before the loss has the cause of the time before.
            job.settle(now)
            job.cause = Cause.RECLAIM if outage.notice_seconds else Cause.NODE
            if saves:
                job.save(now, seconds=self._execution.save_seconds)
            else:
                job.roll_back(now=now, to_snapshot=True)
            self._cluster.lose_positions(job, lost=lost, now=now)
            if self._execution.broken_seconds is not None:
                self._schedule_give_up(job, now + self._execution.broken_seconds)
        self._cluster.leases.lose(outage.node, now=now)
        self._cluster.set_ready(outage.node, ready=False)

    def restore(self, outage: Outage) -> None:
        """Return a node, or its replacement, to service."""
        self._cluster.set_ready(outage.node, ready=True)

    def give_up(self, job: SimulatedJob, *, now: float) -> None:
        """Requeue a job that found no other node in time. Its snapshots are lost with its pods."""
        job.roll_back(now=now, to_snapshot=False)
        self._cluster.release(job, now)
        self._cluster.requeue(job, now)

    def break_process(self, fault: ProcessFault, *, now: float) -> None:
        """Break a process. Its job restarts it on the same nodes."""
        job = self._job_at(fault)
        if job is None or job.is_leaving or (job.admitted is not None and job.admitted.lost):
            return
        job.cause = Cause.HANG if fault.hangs else Cause.PROCESS
        job.roll_back(now=now, to_snapshot=True)
        stalls = [(Stall.RESTARTING, self._execution.process_seconds)]
        if fault.hangs:
            stalls.insert(0, (Stall.IDLE, self._execution.hang_seconds))
        job.stall(stalls, now=now)
        job.version += 1
        if job.is_shrinking:
            self._cluster.finish_shrink(job, now)
        self._schedule_end(job)

    def _job_at(self, fault: ProcessFault) -> SimulatedJob | None:
        """Return the job on one GPU of a node, or None. GPUs of one job are adjacent."""
        number = int(fault.part * self._gpus[fault.node])
        for job in self._cluster.jobs_on_node(fault.node):
            gang = job.arrival.gang
            number -= sum(gang.request_of(i).gpus for i in job.positions(fault.node))
            if number < 0:
                return job
        return None
