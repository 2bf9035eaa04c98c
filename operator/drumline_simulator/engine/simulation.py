"""Simulate discrete events with the operator's own scheduler.

Events are submissions, ends of jobs, evictions (a preempted job has saved and is gone), and events
of nodes. All events of one time are handled before the cycle of that time. A cycle runs
`settle_seconds` after an event, at least `period_seconds` after the last cycle, and at
`Decisions.retry_at`, when time alone may change a decision. The simulation is deterministic: the
same cluster, arrivals and policy give the same outcome.

Cost: one `decide` for each time with an event, and O(log events) for each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from drumline_scheduler import CycleCache, CycleInput, Decisions, Policy, PreemptionRule, decide
from drumline_scheduler.model import ANY_PRICE
from drumline_simulator.cluster import Cluster
from drumline_simulator.engine.decision_applier import DecisionApplier
from drumline_simulator.engine.forecast_recorder import ForecastRecorder
from drumline_simulator.engine.job_split import has_surplus
from drumline_simulator.engine.node_events import NodeEvents
from drumline_simulator.engine.simulated_cluster import SimulatedCluster
from drumline_simulator.engine.simulated_job import SimulatedJob
from drumline_simulator.results.outcome import JobRecord, Outcome
from drumline_simulator.workload import Arrival, Execution, Outage, ProcessFault

_DECIMALS: Final = 6
"""Ends of jobs are rounded to a microsecond, so that equal ends share one cycle although 0.1 + 0.2
is not 0.3 in floating point."""


Decider = Callable[[CycleInput], Decisions]
"""`drumline_scheduler.decide`, a wrapper that measures it, or another scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationProgress:
    """Progress of a simulation, reported after each cycle. Counts are numbers of jobs."""

    now: float
    submitted: int
    ended: int
    waiting: int
    running: int
    jobs: int


class _EventKind(IntEnum):
    """Kinds of events. Events at the same time are handled in this order."""

    # Ends come before submissions: a job that ends frees its GPUs for a job of the same time.
    END = 0
    EVICTED = 1
    GIVE_UP = 2
    """A job that lost a node has found no other node."""
    FAULT = 3
    LOST = 4
    # A lost node counts before a return at the same time, so an outage of 0 s still breaks its
    # jobs.
    RETURN = 5
    NOTICE = 6
    IDLE = 7
    SUBMIT = 8


_Event = tuple[float, int, int, int]
"""Time, kind, index of the job, outage, fault or node, and a version: `SimulatedJob.version`, or
the uses of the node. Events of older versions are stale and ignored."""


def simulate(
    *,
    cluster: Cluster,
    arrivals: Sequence[Arrival],
    policy: Policy,
    execution: Execution,
    outages: Sequence[Outage] = (),
    faults: Sequence[ProcessFault] = (),
    seed: int = 0,
    until: float = float("inf"),
    decider: Decider | None = None,
    recorder: ForecastRecorder | None = None,
    watch: Callable[[SimulationProgress], None] | None = None,
) -> Outcome:
    """Run all jobs through a cluster.

    Args:
        cluster: the cluster, without running jobs.
        arrivals: the jobs, in any order.
        policy: scheduling policy.
        execution: times outside of the decisions.
        outages: nodes that are out of service for a while.
        faults: processes that end or hang.
        seed: seed of the boot times of autoscaled nodes.
        until: time to stop, even if jobs run or wait.
        decider: the scheduler. None: `decide` with its cache between cycles.
        recorder: records expected starts of pending jobs after cycles.
        watch: called with the progress after each cycle.

    Raises:
        ValueError: two jobs have the same uid, or an outage or a fault names no node.
    """
    simulation = Simulation(
        cluster=cluster,
        arrivals=arrivals,
        policy=policy,
        execution=execution,
        outages=outages,
        faults=faults,
        seed=seed,
    )
    simulation.run(decider=decider, recorder=recorder, watch=watch, until=until)
    return simulation.outcome(recorder)


class Simulation:
    """Event queue, and the handlers of its events. The arguments are those of `simulate`."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        arrivals: Sequence[Arrival],
        policy: Policy,
        execution: Execution,
        outages: Sequence[Outage] = (),
        faults: Sequence[ProcessFault] = (),
        seed: int = 0,
    ) -> None:
        # Sorted by uid too: ties in the file's order would make the outcome depend on it.
        arrivals = sorted(arrivals, key=lambda job: (job.gang.queued_at, job.gang.uid))
        self._setup = cluster
        self._policy = policy
        self._execution = execution
        self._outages = outages
        self._faults = faults
        # Nodes travel in events as numbers, because a heap compares its tuples.
        self._node_numbers = {node.name: i for i, node in enumerate(cluster.nodes)}
        self._node_names = tuple(self._node_numbers)
        self._jobs = _jobs_of(arrivals, setup=cluster, execution=execution)
        self._cluster = SimulatedCluster(
            cluster=cluster,
            policy=policy,
            execution=execution,
            seed=seed,
            on_idle=self._schedule_expiry,
        )
        self._applier = DecisionApplier(
            cluster=self._cluster,
            execution=execution,
            schedule_end=self._schedule_end,
            schedule_eviction=self._schedule_eviction,
        )
        self._node_events = NodeEvents(
            cluster=self._cluster,
            nodes=cluster.nodes,
            execution=execution,
            schedule_end=self._schedule_end,
            schedule_give_up=self._schedule_give_up,
        )
        # All events that are known at the start enter the heap at once: heapify is O(n).
        self._events: list[_Event] = [
            (job.gang.queued_at, _EventKind.SUBMIT, i, 0) for i, job in enumerate(arrivals)
        ]
        for i, outage in enumerate(outages):
            self._events.append((outage.at, _EventKind.LOST, i, 0))
            self._events.append((outage.at + outage.seconds, _EventKind.RETURN, i, 0))
            # A notice before time 0 would precede the first submission, so it is cut to 0.
            if outage.notice_seconds:
                notice_at = max(0.0, outage.at - outage.notice_seconds)
                self._events.append((notice_at, _EventKind.NOTICE, i, 0))
        self._events += [(fault.at, _EventKind.FAULT, i, 0) for i, fault in enumerate(faults)]
        heapify(self._events)
        # Computed once: without preemption and moves the work at risk changes no decision.
        self._uses_risk = _uses_risk(cluster=cluster, policy=policy)
        self._submitted = self._ended = self._cycles = 0
        self._now = 0.0
        self._cycle_at, self._last_cycle = float("inf"), float("-inf")
        _validate(cluster=cluster, arrivals=arrivals, outages=outages, faults=faults)

    def run(
        self,
        *,
        decider: Decider | None = None,
        recorder: ForecastRecorder | None = None,
        watch: Callable[[SimulationProgress], None] | None = None,
        until: float = float("inf"),
    ) -> None:
        """Handle events and run cycles until all jobs have ended, no event is left, or `until`.

        The arguments are those of `simulate`. A later call continues.
        """
        # The cache spans all cycles of one simulation, as in the operator's process.
        decider = decider or partial(decide, cache=CycleCache())
        # The loop ends with the last job: later outages and expiries are not simulated.
        while self._ended < len(self._jobs):
            event_at = self._events[0][0] if self._events else float("inf")
            # A stop time must not run a cycle beyond it, so both candidates are compared.
            if min(event_at, self._cycle_at) > until:
                self._now = until
                return
            # Events go first at equal times, so a cycle sees all events of its time.
            if event_at <= self._cycle_at:
                if event_at == float("inf"):
                    # No event and no cycle is left: the remaining jobs can never start.
                    return
                self._now = event_at
                # Stale events ask for no cycle. Otherwise each eviction would cost an empty one.
                if self._handle(heappop(self._events)):
                    due = event_at + self._execution.settle_seconds
                    self._cycle_at = min(
                        self._cycle_at, max(due, self._last_cycle + self._execution.period_seconds)
                    )
                continue
            self._now = self._last_cycle = self._cycle_at
            retry_at = self._cycle(decider)
            self._cycle_at = float("inf")
            # A retry time in the past would run the same cycle forever.
            if retry_at is not None and retry_at > self._last_cycle:
                self._cycle_at = max(retry_at, self._last_cycle + self._execution.period_seconds)
            if recorder is not None:
                # After the cycle: a job that has just started needs no expected start.
                recorder.record(
                    snapshot=self._cluster.snapshot(self._now),
                    pending=self._cluster.pending(),
                    policy=self._policy,
                    now=self._now,
                )
            if watch is not None:
                watch(self._progress())

    def work_done(self) -> dict[str, float]:
        """Return the seconds of work done of each job that runs or is pending, by uid."""
        present = (*self._cluster.waiting.values(), *self._cluster.running.values())
        return {job.gang.uid: job.done(self._now) for job in present}

    def branch(self, *, seconds: Mapping[str, float], later: Iterable[Arrival]) -> Simulation:
        """Return a copy that continues with another future. Outages and faults stay.

        Args:
            seconds: run times of the jobs that run or are pending, by uid. Each must be more than
                the work done.
            later: the jobs that are submitted after now, instead of those of this simulation.
        """
        # Values that never change are shared, because a copy of them takes a second.
        fixed: list[object] = [self._setup, *self._setup.nodes, self._execution, self._policy]
        fixed += self._cluster.allocations
        fixed += [each for job in self._jobs for each in (job.arrival, job.gang, job.admitted)]
        other = deepcopy(self, {id(each): each for each in fixed})
        other._replace_future(seconds=seconds, later=later)  # noqa: SLF001 - of this class
        return other

    def _replace_future(self, *, seconds: Mapping[str, float], later: Iterable[Arrival]) -> None:
        # 1. Other later jobs. All ends are removed, because they follow from the run times.
        del self._jobs[self._submitted :]
        dropped = {_EventKind.SUBMIT, _EventKind.END}
        self._events = [event for event in self._events if event[1] not in dropped]
        more = _jobs_of(later, setup=self._setup, execution=self._execution, first=self._submitted)
        self._events += [(job.gang.queued_at, _EventKind.SUBMIT, job.index, 0) for job in more]
        heapify(self._events)
        # 2. Other run times. A leaving job has no end until it starts again.
        for job in self._jobs:
            if job.ended_at is None:
                job.arrival = replace(job.arrival, duration_seconds=seconds[job.gang.uid])
                if job.admitted is not None and not (job.is_leaving or job.is_shrinking):
                    self._schedule_end(job)
        self._jobs += more

    def outcome(self, recorder: ForecastRecorder | None) -> Outcome:
        """Close the running jobs' allocations and collect the results."""
        cluster, now = self._cluster, self._now
        began_at = min((job.arrival.gang.queued_at for job in self._jobs), default=0.0)
        starts = {job.arrival.gang.uid: job.started_at for job in self._jobs}
        # A copy, because `release` removes from the dict. The jobs count as held until now.
        for job in list(cluster.running.values()):
            cluster.release(job, now)
        return Outcome(
            jobs=tuple(_record(job) for job in self._jobs),
            allocations=tuple(cluster.allocations),
            evictions=tuple(self._applier.evictions),
            forecasts=() if recorder is None else recorder.forecasts(starts),
            moved=self._applier.moved,
            resized=self._applier.resized,
            cycles=self._cycles,
            gpus=self._setup.gpus,
            began_at=began_at,
            ended_at=now,
            leases=cluster.leases.all(began_at=began_at, now=now),
        )

    def _cycle(self, decider: Decider) -> float | None:
        if self._uses_risk:
            self._cluster.update_work_at_risk(self._now)
        cycle = CycleInput(
            snapshot=self._cluster.snapshot(self._now),
            pending=tuple(self._cluster.pending()),
            policy=self._policy,
            now=self._now,
        )
        # Only this call is measured by callers, so the snapshot is built before it.
        decisions = decider(cycle)
        self._cycles += 1
        self._applier.apply(decisions, self._now)
        return decisions.retry_at

    def _handle(self, event: _Event) -> bool:
        """Handle one event. Return whether a cycle should follow."""
        _, kind, index, version = event
        if kind in {_EventKind.NOTICE, _EventKind.LOST, _EventKind.RETURN, _EventKind.FAULT}:
            return self._handle_of_node(_EventKind(kind), index=index)
        if kind == _EventKind.IDLE:
            # `version` is the number of uses here: a node that was used since must stay.
            self._cluster.leases.expire(self._node_names[index], uses=version, now=self._now)
            return False
        job = self._jobs[index]
        if kind == _EventKind.SUBMIT:
            self._submitted += 1
            self._cluster.waiting[job.gang.uid] = job
            return True
        # The end of a job moves with each stall. Its older events stay in the heap and are skipped.
        if version != job.version:
            return False
        if kind == _EventKind.GIVE_UP:
            self._node_events.give_up(job, now=self._now)
            return True
        # A shrinking job only gives up positions, so it must not be requeued.
        if kind == _EventKind.EVICTED and job.is_shrinking:
            self._cluster.finish_shrink(job, self._now)
            self._schedule_end(job)
            return True
        self._cluster.release(job, self._now)
        if kind == _EventKind.EVICTED:
            self._cluster.requeue(job, self._now)
        else:
            job.end(self._now)
            self._ended += 1
        return True

    def _handle_of_node(self, kind: _EventKind, *, index: int) -> bool:
        """Handle an event of a node. Return whether a cycle should follow."""
        match kind:
            case _EventKind.FAULT:
                self._node_events.break_process(self._faults[index], now=self._now)
                # A process fault keeps its node, so no decision changes.
                return False
            case _EventKind.NOTICE:
                self._node_events.announce(self._outages[index])
            case _EventKind.LOST:
                self._node_events.lose(self._outages[index], now=self._now)
            # The only other kind of a node's event is its return.
            case _:
                self._node_events.restore(self._outages[index])
        return True

    def _schedule_end(self, job: SimulatedJob) -> None:
        # Rounding happens here only, so that all ends share one grid.
        at = round(job.ends_at(), _DECIMALS)
        heappush(self._events, (at, _EventKind.END, job.index, job.version))

    def _schedule_eviction(self, job: SimulatedJob, at: float) -> None:
        heappush(self._events, (at, _EventKind.EVICTED, job.index, job.version))

    def _schedule_expiry(self, node: str, at: float, uses: int) -> None:
        heappush(self._events, (at, _EventKind.IDLE, self._node_numbers[node], uses))

    def _schedule_give_up(self, job: SimulatedJob, at: float) -> None:
        heappush(self._events, (at, _EventKind.GIVE_UP, job.index, job.version))

    def _progress(self) -> SimulationProgress:
        return SimulationProgress(
            now=self._now,
            submitted=self._submitted,
            ended=self._ended,
            waiting=len(self._cluster.waiting),
            running=len(self._cluster.running),
            jobs=len(self._jobs),
        )


def _record(job: SimulatedJob) -> JobRecord:
    gang = job.arrival.gang
    return JobRecord(
        key=gang.key,
        uid=gang.uid,
        queue=gang.queue,
        user=gang.user,
        gpus=gang.gpus,
        priority=gang.priority,
        submitted_at=gang.queued_at,
        duration_seconds=job.total_work,
        started_at=job.started_at,
        ended_at=job.ended_at,
        held_seconds=job.held_seconds,
        preempted=len(job.preempted_at),
        lost_gpu_seconds=job.account.lost,
        committed_seconds=job.committed,
        account=job.account,
        not_useful=job.not_useful,
    )


def _jobs_of(
    arrivals: Iterable[Arrival], *, setup: Cluster, execution: Execution, first: int = 0
) -> list[SimulatedJob]:
    # Queues set the price rule that a gang inherits.
    rules = {queue.name: queue.price_rule for queue in setup.queues}
    return [
        SimulatedJob(
            arrival=job,
            index=i,
            execution=execution,
            is_mixed=has_surplus(job.gang, queue_rule=rules.get(job.gang.queue, ANY_PRICE)),
        )
        for i, job in enumerate(arrivals, start=first)
    ]


def _uses_risk(*, cluster: Cluster, policy: Policy) -> bool:
    """Return whether any decision may depend on the work that a running job would lose."""
    idle = PreemptionRule()
    # Any rule but the default may pick victims by their work at risk.
    return policy.moves is not None or any(q.preemption != idle for q in cluster.queues)


def _validate(
    *,
    cluster: Cluster,
    arrivals: Sequence[Arrival],
    outages: Sequence[Outage],
    faults: Sequence[ProcessFault],
) -> None:
    if len({job.gang.uid for job in arrivals}) != len(arrivals):
        raise ValueError("two jobs have the same uid")
    names = {node.name for node in cluster.nodes}
    # Both lists are checked here: an unknown name would only fail hours into the run.
    for event in (*outages, *faults):
        if event.node not in names:
            raise ValueError(f"an outage names node {event.node}, which does not exist")
