"""Track the simulated cluster: pending and running jobs, and the snapshot of a cycle.

All assigned slots are `reserved` and never counted in `Node.used`. A node is therefore one value
for the whole simulation unless it goes out of service. A snapshot reuses the objects of the last
one for everything that did not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from drumline_scheduler import Admitted, Gang, Policy, Snapshot
from drumline_scheduler.quota.fair_sharing import decay
from drumline_simulator.cluster import Cluster
from drumline_simulator.engine.node_leases import IdleNode, NodeLeases
from drumline_simulator.engine.simulated_job import SimulatedJob, Stall
from drumline_simulator.results.outcome import Allocation
from drumline_simulator.results.time_account import Cause
from drumline_simulator.workload import Execution

_REFRESH_SECONDS = 60.0
"""Length of a minute of the clock, with each of which the work at risk is updated."""


class SimulatedCluster:
    """Mutable state between two cycles.

    Args:
        cluster: nodes, queues and failures of the simulation.
        policy: policy of the scheduler.
        execution: times of starts, saves and recoveries.
        seed: seed of all draws.
        on_idle: called when a node becomes idle.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Policy,
        execution: Execution,
        seed: int,
        on_idle: IdleNode,
    ) -> None:
        self._cluster = cluster
        self._execution = execution
        # The dict finds a node by name, and the tuple is the snapshot's value.
        self._nodes = {node.name: node for node in cluster.nodes}
        self._node_tuple = cluster.nodes
        self._history = UsageHistory(
            half_life_seconds=policy.history_seconds, pools=cluster.gpus_by_pool()
        )
        self._uses_history = bool(policy.history_weight)
        # Equal gangs share one frozenset. Thousands of jobs have only a few sizes.
        self._all_positions: dict[int, frozenset[int]] = {}
        self.waiting: dict[str, SimulatedJob] = {}
        self.running: dict[str, SimulatedJob] = {}
        self.allocations: list[Allocation] = []
        self.leases = NodeLeases(cluster=cluster, seed=seed, on_idle=on_idle)
        self._absent: frozenset[str] = frozenset()

    def snapshot(self, now: float) -> Snapshot:
        """Return the current input of the scheduler."""
        # Phase order: nodes first, because the tuple below must show their preference.
        self._prefer_present_nodes()
        return Snapshot(
            nodes=self._node_tuple,
            pools=self._cluster.pools,
            queues=self._cluster.queues,
            admitted=tuple(part for job in self.running.values() for part in _parts(job)),
            # History without a weight changes no decision, so it is not computed.
            history=self._history.at(now) if self._uses_history else {},
        )

    def pending(self) -> list[Gang]:
        """Return the gangs of all pending jobs."""
        return [job.gang for job in self.waiting.values()]

    def start(
        self,
        job: SimulatedJob,
        *,
        pool: str,
        nodes: Sequence[str],
        now: float,
        surplus_pool: str = "",
    ) -> None:
        """Assign nodes of a pool to a pending job, and nodes of another pool to its surplus.

        Args:
            job: the simulated job.
            pool: name of the pool.
            nodes: a node for each pod.
            now: seconds of the virtual clock.
            surplus_pool: pool of the surplus. Empty without a surplus.
        """
        del self.waiting[job.gang.uid]
        self.running[job.gang.uid] = job
        # A started job has no more nominations: other gangs may use those nodes again.
        gang = replace(job.gang, nominated=(), nominated_pool="") if job.gang.nominated else None
        job.gang = gang or job.gang
        runs_again = job.started_at is not None
        execution = self._execution
        # A restart loads a checkpoint, so it may take longer than a first start.
        seconds = execution.restart_seconds if runs_again else execution.start_seconds
        self._assign(
            job,
            pool=pool,
            nodes=tuple(nodes),
            admitted_at=now,
            now=now,
            restart_seconds=seconds,
            surplus_pool=surplus_pool,
        )

    def reassign(
        self,
        job: SimulatedJob,
        *,
        nodes: Sequence[str],
        now: float,
        surplus_pool: str = "",
        unanswered: Collection[int] = (),
    ) -> None:
        """Assign other nodes to a running job, because it is repaired, resized or moved.

        Args:
            job: the job.
            nodes: nodes by position.
            now: current time.
            surplus_pool: pool of the nodes beyond its minimum size, if it is mixed.
            unanswered: positions without a decision, which stay lost or announced.
        """
        held = _admitted(job)
        # Repairs of lost places have their own measured time, which excludes the scheduling of all
        # pods.
        seconds = self._execution.restart_seconds
        if (held.lost or held.displaced) and self._execution.repair_seconds is not None:
            seconds = self._execution.repair_seconds
        # Settle before the change: the time until now counts with the old nodes.
        job.settle(now)
        self._end_allocation(job, now)
        self._assign(
            job,
            pool=held.pool,
            nodes=tuple(nodes),
            # The admission time stays, because preemption protects jobs by their first admission.
            admitted_at=held.admitted_at,
            now=now,
            restart_seconds=seconds,
            surplus_pool=surplus_pool,
        )
        # Positions without a decision are still lost. The next cycle repairs them.
        if unanswered:
            job.admitted = replace(
                _admitted(job),
                lost=held.lost & frozenset(unanswered),
                displaced=held.displaced & frozenset(unanswered),
            )

    def release(self, job: SimulatedJob, now: float) -> None:
        """Release all nodes of a job that ended or was evicted."""
        job.settle(now)
        self._end_allocation(job, now)
        del self.running[job.gang.uid]

    def requeue(self, job: SimulatedJob, now: float) -> None:
        """Put an evicted job back into its queue. A job that moves keeps its nominated nodes."""
        held = _admitted(job)
        job.requeue(now)
        # Only a leaving job moves. Other nominations are for lost positions, which are gone now.
        if held.nominated and held.leaving:
            job.gang = replace(
                job.gang,
                nominated=tuple(node for _, node in sorted(held.nominated.items())),
                nominated_pool=held.nominated_pool or held.pool,
            )
        self.waiting[job.gang.uid] = job

    def begin_eviction(self, job: SimulatedJob, now: float) -> None:
        """Mark a job as leaving after its notice of eviction."""
        job.settle(now)
        # A whole eviction includes the positions that were about to shrink.
        job.admitted = replace(_admitted(job), leaving=True, giving_up=frozenset())
        # The scheduled end belongs to the old state, so its event becomes stale.
        job.version += 1

    def cancel_move(self, job: SimulatedJob, now: float) -> None:
        """Let a job that was about to move continue on its current nodes."""
        job.settle(now)
        held = _admitted(job)
        # Nodes may have failed during the notice. They are lost positions now.
        gone = {i for i, name in enumerate(held.assignment) if not self._nodes[name].ready}
        job.cause = Cause.NODE
        job.admitted = replace(
            held, leaving=False, lost=held.lost | gone, nominated={}, nominated_pool=""
        )
        job.version += 1

    def begin_shrink(self, job: SimulatedJob, *, kept: Collection[int]) -> None:
        """Mark all positions except `kept` as leaving. `finish_shrink` releases them."""
        held = _admitted(job)
        leaving = frozenset(range(len(held.assignment))) - frozenset(kept)
        job.admitted = replace(held, giving_up=leaving)
        job.version += 1

    def finish_shrink(self, job: SimulatedJob, now: float) -> None:
        """Release the positions that a shrinking job gives up."""
        held = _admitted(job)
        if not held.lost:
            job.settle(now)
            job.cause = Cause.RESIZE
        self.reassign(
            job,
            # The kept positions close the gaps, so positions are numbered again.
            nodes=[n for i, n in enumerate(held.assignment) if i not in held.giving_up],
            now=now,
        )

    def nominate(self, job: SimulatedJob, *, nominated: Mapping[int, str], pool: str) -> None:
        """Reserve nodes for a running job: for its lost positions, or as the target of a move.

        Args:
            job: the simulated job.
            nominated: reserved nodes by position.
            pool: name of the pool.
        """
        job.admitted = replace(_admitted(job), nominated=nominated, nominated_pool=pool)

    def lose_positions(self, job: SimulatedJob, *, lost: frozenset[int], now: float) -> None:
        """Mark positions of a job as lost. It makes no progress until they are replaced.

        Args:
            job: the simulated job.
            lost: lost positions.
            now: seconds of the virtual clock.
        """
        job.settle(now)
        held = _admitted(job)
        # A node that was announced and is now lost counts once, as lost.
        job.admitted = replace(held, lost=held.lost | lost, displaced=held.displaced - lost)
        job.version += 1

    def set_ready(self, name: str, *, ready: bool, closed: str = "") -> None:
        """Take a node out of service or bring it back, or keep new pods off it.

        Args:
            name: name of the node.
            ready: whether the node is in service.
            closed: why no new pod may use it. Empty: it may be used.
        """
        self._nodes[name] = replace(self._nodes[name], ready=ready, closed=closed)
        # One new tuple per change of a node. Equal tuples let the scheduler's cache skip all nodes.
        self._node_tuple = tuple(self._nodes.values())

    def jobs_on_node(self, name: str) -> list[SimulatedJob]:
        """Return running jobs with a pod on a node."""
        return [job for job in self.running.values() if name in _admitted(job).assignment]

    # Suspicion is the last criterion among equal nodes, so it orders and never forbids.
    def _prefer_present_nodes(self) -> None:
        """Order nodes that would have to boot last among equal nodes."""
        absent = self.leases.absent
        # The symmetric difference visits only nodes that changed since the last snapshot.
        for name in absent ^ self._absent:
            self._nodes[name] = replace(self._nodes[name], suspicion=int(name in absent))
        if absent != self._absent:
            self._absent = absent
            self._node_tuple = tuple(self._nodes.values())

    def update_work_at_risk(self, now: float) -> None:
        """Update the work that each running job would lose if it were killed now."""
        minute = now // _REFRESH_SECONDS
        for job in self.running.values():
            # Minutes are those of the clock, as in the operator. A gang that has just started would
            # else look free of cost for up to a minute longer, and be the victim.
            if job.refreshed_at // _REFRESH_SECONDS != minute:
                job.refreshed_at = now
                risk = job.work_at_risk(now)
                job.admitted = replace(_admitted(job), gpu_seconds_at_risk=risk)

    def _assign(
        self,
        job: SimulatedJob,
        *,
        pool: str,
        nodes: tuple[str, ...],
        admitted_at: float,
        now: float,
        restart_seconds: float,
        surplus_pool: str,
    ) -> None:
        positions = self._all_positions.setdefault(len(nodes), frozenset(range(len(nodes))))
        admitted = Admitted(
            gang=job.split.start(job.gang, places=len(nodes), surplus_pool=surplus_pool),
            pool=pool,
            assignment=nodes,
            reserved=positions,
            admitted_at=admitted_at,
            preempted_at=tuple(job.preempted_at),
        )
        # A node that is absent boots first. The gang waits for the slowest one.
        boot_seconds = self.leases.take(nodes, now=now)
        # Stalls of 0 s are left out, so that they add no entry.
        stalls = ((Stall.IDLE, boot_seconds), (Stall.RESTARTING, restart_seconds))
        job.start(admitted=admitted, now=now, stalls=[each for each in stalls if each[1]])
        self._change_usage(job, sign=1, now=now)

    def _end_allocation(self, job: SimulatedJob, now: float) -> None:
        held = _admitted(job)
        self._change_usage(job, sign=-1, now=now)
        # `held` counts from the allocation, not the start: booting GPUs are held too.
        job.held_seconds += now - job.allocated_at
        self.leases.give_back(held.assignment, now=now)
        self.allocations.append(
            Allocation(
                job=job.index,
                begins_at=job.allocated_at,
                ends_at=now,
                gpus=held.gpus,
                nodes=held.assignment,
            )
        )

    def _change_usage(self, job: SimulatedJob, *, sign: int, now: float) -> None:
        for part in _parts(job):
            gpus = sign * part.gpus
            self._history.change(queue=job.gang.queue, pool=part.pool, gpus=gpus, now=now)


def _admitted(job: SimulatedJob) -> Admitted:
    if job.admitted is None:
        raise ValueError(f"{job.gang.key} has no nodes assigned")
    return job.admitted


def _parts(job: SimulatedJob) -> tuple[Admitted, ...]:
    return job.split.parts(_admitted(job), gang=job.gang)


class UsageHistory:
    """Dominant share of each queue in seconds, with older usage decayed."""

    def __init__(self, *, half_life_seconds: float, pools: Mapping[str, int]) -> None:
        self._half_life = half_life_seconds
        self._pools = pools
        self._held: dict[str, dict[str, int]] = {}
        self._share: dict[str, float] = {}
        self._usage: dict[str, float] = {}
        self._updated_at: dict[str, float] = {}

    def change(self, *, queue: str, pool: str, gpus: int, now: float) -> None:
        """Add GPUs of a pool to the usage of a queue from now on. Negative: remove them.

        Args:
            queue: name of the queue.
            pool: name of the pool.
            gpus: GPUs to add.
            now: seconds of the virtual clock.
        """
        self._update(queue, now)
        held = self._held.setdefault(queue, {})
        held[pool] = held.get(pool, 0) + gpus
        self._share[queue] = max(held[name] / self._pools[name] for name in held)

    def at(self, now: float) -> dict[str, float]:
        """Return the usage of every queue that ever held a GPU."""
        for queue in self._held:
            self._update(queue, now)
        return dict(self._usage)

    def _update(self, queue: str, now: float) -> None:
        before = self._usage.get(queue, 0.0)
        after = decay(
            history={queue: before},
            shares={queue: self._share.get(queue, 0.0)},
            seconds=now - self._updated_at.get(queue, now),
            half_life=self._half_life,
        )
        self._usage[queue] = after.get(queue, 0.0)
        self._updated_at[queue] = now
