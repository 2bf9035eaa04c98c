"""The simulation itself: events on a virtual clock drive the scheduler that the operator uses.

Events are submissions, ends of jobs, ends of preempted jobs' saving, outages of nodes, and the
cycle. All events of one moment come before the cycle of that moment. A cycle follows whenever
something has happened since the last one, `settle_seconds` later and `period_seconds` apart, and
when `Decisions.retry_at` says that time alone may change something. There is no randomness: the
same cluster, arrivals and policy give the same outcome.

Cost: one `decide` for each moment at which something happens, and O(log events) for each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from drumline.scheduling import Decisions, Gang, Memory, Policy, PreemptionRule, Snapshot, decide
from drumline.simulator.arrivals import Arrival, Execution, Outage
from drumline.simulator.cluster import Cluster
from drumline.simulator.engine.decision_applier import Carrier
from drumline.simulator.engine.forecast_recorder import Foreteller
from drumline.simulator.engine.simulated_cluster import World
from drumline.simulator.engine.simulated_job import Life
from drumline.simulator.results.outcome import JobRecord, Outcome

_DECIMALS: Final = 6
"""Ends are rounded to a microsecond, so that what happens together is seen together: in floating
point 0.1 + 0.2 seconds are not 0.3."""


class Decider(Protocol):
    """`drumline.scheduling.decide`, or something that watches it."""

    def __call__(
        self, *, snapshot: Snapshot, pending: Iterable[Gang], policy: Policy, now: float
    ) -> Decisions:
        """Decide one cycle."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """How far a simulation has come, told after each cycle."""

    now: float
    submitted: int
    ended: int
    waiting: int
    running: int
    jobs: int


class _Kind(IntEnum):
    """What happens; of one moment in this order."""

    END = 0
    GONE = 1
    OUTAGE = 2
    RETURN = 3
    SUBMIT = 4


_Event = tuple[float, int, int, int]
"""Time, kind, the index of the job or outage, and the version of the job's life."""


def simulate(
    *,
    cluster: Cluster,
    arrivals: Sequence[Arrival],
    policy: Policy,
    execution: Execution,
    outages: Sequence[Outage] = (),
    decider: Decider | None = None,
    foreteller: Foreteller | None = None,
    watch: Callable[[Tick], None] | None = None,
) -> Outcome:
    """Run all jobs through a cluster.

    Args:
        cluster: what there is; nothing runs on it yet.
        arrivals: the jobs, in any order.
        policy: the scheduler's.
        execution: what time passes beside the decisions.
        outages: nodes that are out of service for a while.
        decider: the scheduler; None: `decide` with a memory from cycle to cycle.
        foreteller: is asked after cycles for the starts of those who wait.
        watch: is told how far it has come.

    Raises:
        ValueError: where two jobs have one uid, or an outage names no node.
    """
    simulation = _Simulation(
        cluster=cluster,
        arrivals=sorted(arrivals, key=lambda one: (one.gang.queued_at, one.gang.uid)),
        policy=policy,
        execution=execution,
        outages=outages,
    )
    decider = decider or partial(decide, memory=Memory())
    simulation.go(decider=decider, foreteller=foreteller, watch=watch)
    return simulation.outcome(foreteller)


class _Simulation:
    """The queue of events and what each of them does."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        arrivals: Sequence[Arrival],
        policy: Policy,
        execution: Execution,
        outages: Sequence[Outage],
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._execution = execution
        self._outages = outages
        self._lives = [Life(arrival=one, index=i) for i, one in enumerate(arrivals)]
        self._world = World(cluster=cluster, policy=policy, execution=execution)
        self._carrier = Carrier(
            world=self._world, execution=execution, ends=self._will_end, gone=self._will_be_gone
        )
        self._events: list[_Event] = [
            (one.gang.queued_at, _Kind.SUBMIT, i, 0) for i, one in enumerate(arrivals)
        ]
        self._events += [(one.at, _Kind.OUTAGE, i, 0) for i, one in enumerate(outages)]
        heapify(self._events)
        self._risks_count = _risks_count(cluster=cluster, policy=policy)
        self._submitted = self._ended = self._cycles = 0
        self._now = 0.0
        _refuse_nonsense(cluster=cluster, arrivals=arrivals, outages=outages)

    def go(
        self,
        *,
        decider: Decider,
        foreteller: Foreteller | None,
        watch: Callable[[Tick], None] | None,
    ) -> None:
        """Until nothing is left that could happen."""
        cycle_at, last_cycle = float("inf"), float("-inf")
        while self._ended < len(self._lives):
            event_at = self._events[0][0] if self._events else float("inf")
            if event_at <= cycle_at:
                if event_at == float("inf"):
                    return
                self._now = event_at
                if self._happen(heappop(self._events)):
                    due = event_at + self._execution.settle_seconds
                    cycle_at = min(cycle_at, max(due, last_cycle + self._execution.period_seconds))
                continue
            self._now = last_cycle = cycle_at
            retry_at = self._cycle(decider)
            cycle_at = float("inf")
            if retry_at is not None and retry_at > last_cycle:
                cycle_at = max(retry_at, last_cycle + self._execution.period_seconds)
            if foreteller is not None:
                foreteller.ask(
                    snapshot=self._world.snapshot(self._now),
                    pending=self._world.pending(),
                    policy=self._policy,
                    now=self._now,
                )
            if watch is not None:
                watch(self._tick())

    def outcome(self, foreteller: Foreteller | None) -> Outcome:
        """What came out."""
        world, now = self._world, self._now
        starts = {life.arrival.gang.uid: life.started_at for life in self._lives}
        for life in list(world.running.values()):
            world.leave(life, now)
        return Outcome(
            jobs=tuple(_record(life) for life in self._lives),
            spans=tuple(world.spans),
            evictions=tuple(self._carrier.evictions),
            promises=() if foreteller is None else foreteller.promises(starts),
            moved=self._carrier.moved,
            resized=self._carrier.resized,
            cycles=self._cycles,
            gpus=self._cluster.gpus,
            began_at=min((life.arrival.gang.queued_at for life in self._lives), default=0.0),
            ended_at=now,
        )

    def _cycle(self, decider: Decider) -> float | None:
        if self._risks_count:
            self._world.refresh_risks(self._now)
        decisions = decider(
            snapshot=self._world.snapshot(self._now),
            pending=self._world.pending(),
            policy=self._policy,
            now=self._now,
        )
        self._cycles += 1
        self._carrier.carry_out(decisions, self._now)
        return decisions.retry_at

    def _happen(self, event: _Event) -> bool:
        """Let one event happen; whether a cycle should follow."""
        _, kind, index, version = event
        if kind == _Kind.OUTAGE:
            return self._break(self._outages[index])
        if kind == _Kind.RETURN:
            self._world.set_ready(self._outages[index].node, ready=True)
            return True
        life = self._lives[index]
        if kind == _Kind.SUBMIT:
            self._submitted += 1
            self._world.waiting[life.gang.uid] = life
            return True
        if version != life.version:
            return False
        if kind == _Kind.GONE and life.shrinks:
            self._world.shrink(life, self._now)
            self._will_end(life)
            return True
        self._world.leave(life, self._now)
        if kind == _Kind.GONE:
            self._world.requeue(life)
        else:
            life.ended_at = self._now
            life.version += 1
            self._ended += 1
        return True

    def _break(self, outage: Outage) -> bool:
        for life in self._world.on_node(outage.node):
            if life.shrinks:
                self._world.shrink(life, self._now)
            held = life.admitted
            if held is not None and not held.leaving:
                life.fall_back(now=self._now, execution=self._execution)
                lost = {i for i, name in enumerate(held.assignment) if name == outage.node}
                self._world.break_places(life, lost=frozenset(lost))
        self._world.set_ready(outage.node, ready=False)
        index = self._outages.index(outage)
        heappush(self._events, (outage.at + outage.seconds, _Kind.RETURN, index, 0))
        return True

    def _will_end(self, life: Life) -> None:
        at = round(life.ends_at(), _DECIMALS)
        heappush(self._events, (at, _Kind.END, life.index, life.version))

    def _will_be_gone(self, life: Life, at: float) -> None:
        heappush(self._events, (at, _Kind.GONE, life.index, life.version))

    def _tick(self) -> Tick:
        return Tick(
            now=self._now,
            submitted=self._submitted,
            ended=self._ended,
            waiting=len(self._world.waiting),
            running=len(self._world.running),
            jobs=len(self._lives),
        )


def _record(life: Life) -> JobRecord:
    gang = life.arrival.gang
    return JobRecord(
        key=gang.key,
        uid=gang.uid,
        queue=gang.queue,
        user=gang.user,
        gpus=gang.gpus,
        priority=gang.priority,
        submitted_at=gang.queued_at,
        duration_seconds=life.total_work,
        started_at=life.started_at,
        ended_at=life.ended_at,
        held_seconds=life.held_seconds,
        preempted=life.preempted,
        lost_gpu_seconds=life.lost_gpu_seconds,
    )


def _risks_count(*, cluster: Cluster, policy: Policy) -> bool:
    """Whether anything is ever decided by how much work a running job would lose."""
    idle = PreemptionRule()
    return policy.moves is not None or any(q.preemption != idle for q in cluster.queues)


def _refuse_nonsense(
    *, cluster: Cluster, arrivals: Sequence[Arrival], outages: Sequence[Outage]
) -> None:
    if len({one.gang.uid for one in arrivals}) != len(arrivals):
        raise ValueError("two jobs have one uid")
    names = {node.name for node in cluster.nodes}
    for outage in outages:
        if outage.node not in names:
            raise ValueError(f"an outage names node {outage.node}, which does not exist")
