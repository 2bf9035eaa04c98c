"""Published workloads on a virtual clock: how long they take there, and how fast we decide here.

Kueue's three generator files (test/performance/scheduler/configs) and knavigator's burst of whole
nodes, run through the simulator, with a cycle whenever something has happened, but no more often
than a shape says.

Kueue's figures are wall times of its own runner: execution is faked there too, but it pays for a
real API server. So its makespan is beside a virtual one, and both are above the same work bound;
its admissions per second are beside ours per second of processor time spent in deciding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from drumline_scheduler import (
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    Node,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    WithinQueue,
    decide,
)
from drumline_simulator.cluster import Cluster
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.workload import Arrival, Execution
from tools.bench.report import Row

_RULE = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)
_AT_ONCE = Execution(save_seconds=0, checkpoint_seconds=3600, restart_seconds=0)
_POOL = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """One line of a generator file: jobs of one kind in each queue."""

    name: str
    count: int
    pods: int
    units: int
    """Of the counted resource, for each pod."""
    seconds: float
    every: float
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A workload and what others and we say about it."""

    cohorts: int
    queues: int
    """In each cohort."""
    nominal: int
    borrowing: int
    classes: tuple[Class, ...]
    cluster: Callable[[], tuple[Pool, tuple[Node, ...]]]
    demand: Callable[[int], dict[str, object]] = field(default=lambda _: {})
    """Further fields of the n-th gang of a class and queue."""
    rule: PreemptionRule = _RULE
    period_seconds: float
    """The least time between two cycles, as in an operator that lets events come together."""
    bound_seconds: float
    """Work divided by quota: nobody can be faster."""
    makespan_goal: float | None
    rate_goal: float
    peer_makespan: str
    peer_rate: str


@dataclass(slots=True)
class Stopwatch:
    """A decider for the simulator that notes the processor time of each cycle."""

    seconds: list[float] = field(default_factory=list[float])
    cache: CycleCache = field(default_factory=CycleCache)

    def __call__(self, cycle: CycleInput) -> Decisions:
        began = time.process_time()
        decisions = decide(cycle, cache=self.cache)
        self.seconds.append(time.process_time() - began)
        return decisions


def one_big_node() -> tuple[Pool, tuple[Node, ...]]:
    """Where a peer counts quota only: a node that everything fits on."""
    whole = Resources(gpus=10**6, pods=10**6)
    return Pool(name=_POOL), (Node(name="node", pool=_POOL, allocatable=whole),)


def block_of_racks() -> tuple[Pool, tuple[Node, ...]]:
    """One block of 10 racks of 64 nodes of 96 CPUs, counted in quarters."""
    whole = Resources(gpus=4 * 96, pods=110)
    nodes = tuple(
        Node(
            name=f"node-{i:03}",
            pool=_POOL,
            allocatable=whole,
            domains=("block", f"rack-{i // 64}", f"node-{i:03}"),
        )
        for i in range(640)
    )
    return Pool(name=_POOL, levels=("block", "rack", "host")), nodes


def gpu_nodes() -> tuple[Pool, tuple[Node, ...]]:
    """32 nodes of 8 GPUs."""
    whole = Resources(gpus=8, pods=110)
    return Pool(name=_POOL), tuple(
        Node(name=f"node-{i:02}", pool=_POOL, allocatable=whole) for i in range(32)
    )


def _thirds(number: int) -> dict[str, object]:
    """A third requires one rack, a third prefers it, a third is balanced over racks."""
    if number % 3 == 0:
        return {"required_level": "rack"}
    return {"preferred_level": "rack"} if number % 3 == 1 else {"balanced_level": "rack"}


_BASELINE = (
    Class(name="small", count=350, pods=1, units=1, seconds=0.2, every=0.1, priority=50),
    Class(name="medium", count=100, pods=1, units=5, seconds=0.5, every=0.5, priority=100),
    Class(name="large", count=50, pods=1, units=20, seconds=1.0, every=1.2, priority=200),
)
_LARGE = (
    Class(name="small", count=35, pods=1, units=1, seconds=0.15, every=0.06, priority=50),
    Class(name="medium", count=11, pods=1, units=5, seconds=0.35, every=0.3, priority=100),
    Class(name="large", count=4, pods=1, units=20, seconds=0.7, every=0.7, priority=200),
)
_TAS = (
    Class(name="small", count=350, pods=2, units=2, seconds=0.2, every=0.1, priority=50),
    Class(name="medium", count=100, pods=4, units=5, seconds=0.5, every=0.5, priority=100),
    Class(name="large", count=50, pods=8, units=10, seconds=1.0, every=1.2, priority=200),
)
_BURST = [(1, 32), (2, 16), (3, 10), (1, 2), (4, 8), (5, 6), (2, 1), (6, 5), (1, 2), (7, 4)]
_BURST += [(1, 2), (2, 1), (8, 4), (9, 3), (1, 5)]

SHAPES = {
    "baseline": Shape(
        cohorts=5,
        queues=6,
        nominal=20,
        borrowing=100,
        classes=_BASELINE,
        cluster=one_big_node,
        period_seconds=0.5,
        bound_seconds=66.0,
        makespan_goal=80.0,
        rate_goal=2000.0,
        peer_makespan="Kueue 351.1 s of wall time",
        peer_rate="Kueue 42.7/s",
    ),
    "large-scale": Shape(
        cohorts=10,
        queues=100,
        nominal=20,
        borrowing=100,
        classes=_LARGE,
        cluster=one_big_node,
        period_seconds=0.25,
        bound_seconds=4.0,
        makespan_goal=None,
        rate_goal=2000.0,
        peer_makespan="Kueue 1179.4 s of wall time",
        peer_rate="Kueue 42.4/s",
    ),
    "tas": Shape(
        cohorts=5,
        queues=6,
        nominal=80,
        borrowing=400,
        classes=_TAS,
        cluster=block_of_racks,
        demand=_thirds,
        period_seconds=0.5,
        bound_seconds=66.0,
        makespan_goal=None,
        rate_goal=1000.0,
        peer_makespan="Kueue 401.5 s of wall time",
        peer_rate="Kueue 37.4/s",
    ),
}


def cluster_of(shape: Shape) -> Cluster:
    """Its nodes and its tree of queues."""
    pool, nodes = shape.cluster()
    queues = [Queue(name=f"cohort-{c}", nominal={_POOL: 0}) for c in range(shape.cohorts)]
    queues += [
        Queue(
            name=f"queue-{c}-{q}",
            nominal={_POOL: shape.nominal},
            parent=f"cohort-{c}",
            borrowing_limit={_POOL: shape.borrowing},
            preemption=shape.rule,
        )
        for c in range(shape.cohorts)
        for q in range(shape.queues)
    ]
    return Cluster(nodes=nodes, pools=(pool,), queues=tuple(queues))


def arrivals_of(shape: Shape) -> Iterator[Arrival]:
    """All its jobs; the n-th of a class comes n intervals after the start."""
    for cohort in range(shape.cohorts):
        for queue in range(shape.queues):
            for kind in shape.classes:
                for number in range(kind.count):
                    name = f"{kind.name}-{cohort}-{queue}-{number}"
                    gang = Gang(
                        key=f"team/{name}",
                        uid=name,
                        queue=f"queue-{cohort}-{queue}",
                        nodes=kind.pods,
                        per_pod=Resources(gpus=kind.units, pods=1),
                        queued_at=round(number * kind.every, 3),
                        priority=kind.priority,
                        **shape.demand(number),  # type: ignore[arg-type]
                    )
                    yield Arrival(gang=gang, duration_seconds=kind.seconds)


def burst() -> list[Arrival]:
    """Knavigator's 53 jobs of 288 whole nodes, all at once; their names keep their order."""
    jobs = [pods for count, pods in _BURST for _ in range(count)]
    return [
        Arrival(
            gang=Gang(
                key=f"team/job-{number:02}",
                uid=f"job-{number:02}",
                queue="queue",
                nodes=pods,
                per_pod=Resources(gpus=8, pods=1),
                queued_at=0.0,
            ),
            duration_seconds=120.0,
        )
        for number, pods in enumerate(jobs)
    ]


def rows() -> list[Row]:
    """The figures of all shapes."""
    results = [row for name, shape in SHAPES.items() for row in _figures(name, shape)]
    return [*results, *_burst_rows()]


def run(shape: Shape) -> tuple[Outcome, Stopwatch]:
    """One shape, every cycle timed."""
    watch = Stopwatch()
    outcome = simulate(
        cluster=cluster_of(shape),
        arrivals=list(arrivals_of(shape)),
        policy=Policy(history_weight=0.0),
        execution=replace(_AT_ONCE, period_seconds=shape.period_seconds),
        decider=watch,
    )
    return outcome, watch


def _figures(name: str, shape: Shape) -> Iterator[Row]:
    outcome, watch = run(shape)
    if any(job.ended_at is None for job in outcome.jobs):
        raise AssertionError(f"{name}: some jobs never ended")
    spent = sum(watch.seconds)
    starts = len(outcome.jobs) + sum(job.preempted for job in outcome.jobs)
    makespan = outcome.ended_at - outcome.began_at
    goal = shape.makespan_goal
    yield Row(
        name=f"Kueue {name}: virtual makespan, work bound {shape.bound_seconds:g} s,"
        f" a cycle each {shape.period_seconds:g} s",
        value=makespan,
        unit="s",
        goal="" if goal is None else f"<= {goal:g} s",
        met=None if goal is None else makespan <= goal,
        peer=shape.peer_makespan,
    )
    yield Row(
        name=f"Kueue {name}: {len(outcome.jobs)} jobs, starts decided per second",
        value=starts / spent,
        unit="/s",
        goal=f">= {shape.rate_goal:g}/s",
        met=starts / spent >= shape.rate_goal,
        peer=shape.peer_rate,
    )
    yield Row(
        name=f"Kueue {name}: mean of {outcome.cycles} cycles",
        value=1000 * spent / outcome.cycles,
        unit="ms",
    )


def _burst_rows() -> Iterator[Row]:
    pool, nodes = gpu_nodes()
    queue = Queue(name="queue", nominal={_POOL: 8 * len(nodes)})
    outcome = simulate(
        cluster=Cluster(nodes=nodes, pools=(pool,), queues=(queue,)),
        arrivals=burst(),
        policy=Policy(),
        execution=_AT_ONCE,
    )
    waves = len({job.started_at for job in outcome.jobs})
    held = sum(period.gpus * (period.ends_at - period.begins_at) for period in outcome.allocations)
    there = outcome.gpus * (outcome.ended_at - outcome.began_at)
    yield Row(
        name="knavigator: 53 jobs of 288 nodes on 32 nodes, waves",
        value=waves,
        unit="waves",
        goal="<= 9",
        met=waves <= 9,
        peer="9 perfect waves exist",
    )
    yield Row(name="the same: mean GPU occupancy", value=100 * held / there, unit="%")
