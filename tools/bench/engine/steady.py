"""A large cluster at work: 5,000 nodes that are full, 10,000 jobs that wait, one event a cycle."""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from statistics import median

from drumline_scheduler import (
    Admitted,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    Policy,
    Queue,
    decide,
)
from tools.bench.engine.worlds import empty, gangs, pod, running, with_running
from tools.bench.report import Row

NODES = 5000
WAITING = 10_000
QUEUES = 20
SHAPES = 25
CYCLES = 200
MOST_SECONDS = 60.0


class Site:
    """The world between two cycles; what does not change stays the same object."""

    def __init__(self) -> None:
        held = tuple(
            running(
                f"run-{i:05}",
                on=tuple(f"node-{4 * i + k:05}" for k in range(4)),
                gpus=8,
                at_risk=float(i % 600),
                queue=f"team-{i % QUEUES:02}",
            )
            for i in range(NODES // 4)
        )
        quota = {"h100": 8 * NODES // QUEUES}
        queues = (
            Queue(name="org", nominal={}),
            *(Queue(name=f"team-{i:02}", nominal=quota, parent="org") for i in range(QUEUES)),
        )
        self.snapshot = replace(with_running(empty(nodes=NODES), held), queues=queues)
        self.cache = CycleCache()
        self.pending = [_varied(item, i) for i, item in enumerate(gangs(WAITING, pods=4))]
        self.arrived = WAITING

    def arrive(self) -> None:
        """A job like the others is submitted."""
        fresh = gangs(1, pods=4)[0]
        fresh = replace(
            fresh,
            key=f"team/job-{self.arrived:05}",
            uid=f"uid-{self.arrived:05}",
            queued_at=float(self.arrived),
        )
        self.pending.append(_varied(fresh, self.arrived))
        self.arrived += 1

    def finish(self, index: int) -> None:
        """A running job ends and its pods are gone."""
        held = self.snapshot.admitted
        gone = held[index % len(held)]
        self.snapshot = replace(
            self.snapshot, admitted=tuple(item for item in held if item is not gone)
        )
        self._use(gone, sign=-1)

    def cordon(self, index: int) -> None:
        """A node is closed, or opened again."""
        nodes = list(self.snapshot.nodes)
        node = nodes[index % NODES]
        nodes[index % NODES] = replace(node, unschedulable=not node.unschedulable)
        self.snapshot = replace(self.snapshot, nodes=tuple(nodes))

    def carry_out(self, decisions: Decisions) -> None:
        """Who was placed runs."""
        if not decisions.placed:
            return
        gangs_by_uid = {gang.uid: gang for gang in self.pending}
        started = [
            Admitted(
                gang=gangs_by_uid[placement.uid],
                pool=placement.pool,
                assignment=placement.assignment,
            )
            for placement in decisions.placed
        ]
        self.snapshot = replace(self.snapshot, admitted=(*self.snapshot.admitted, *started))
        for item in started:
            self._use(item, sign=1)
        gone = {gang.uid for gang in decisions.placed}
        self.pending = [gang for gang in self.pending if gang.uid not in gone]

    def _use(self, held: Admitted, *, sign: int) -> None:
        nodes = list(self.snapshot.nodes)
        for name in held.assignment:
            place = int(name.removeprefix("node-"))
            used = nodes[place].used + held.gang.per_pod.times(sign)
            nodes[place] = replace(nodes[place], used=used)
        self.snapshot = replace(self.snapshot, nodes=tuple(nodes))


def _varied(gang: Gang, i: int) -> Gang:
    """One of some shapes, in one of the queues; a third requires one rack."""
    shape = i % SHAPES
    return replace(
        gang,
        queue=f"team-{i * 7 % QUEUES:02}",
        nodes=1 + shape % 8,
        per_pod=pod(8 if shape % 3 else 4),
        priority=shape % 2,
        required_level="rack" if shape % 3 == 0 else None,
    )


def rows() -> list[Row]:
    """Median and p99 of the cycles, the first one apart, and the memory of the process."""
    site = Site()
    first = _cycle(site)
    took: list[float] = []
    while len(took) < CYCLES and sum(took) < 1000 * MOST_SECONDS:
        i = len(took)
        if i % 3 == 0:
            site.arrive()
        elif i % 3 == 1:
            site.finish(i * 37)
        else:
            site.cordon(i // 6 * 11)
        took.append(_cycle(site))
    ranked = sorted(took)
    p99 = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"{NODES} nodes, {WAITING} waiting jobs of {SHAPES} shapes"
    return [
        Row(name=f"{what}: the first cycle", value=first, unit="ms"),
        _row(f"{what}: a cycle after one event, median of {len(took)}", median(took), 15, "ms"),
        _row(f"{what}: the same, p99", p99, 100, "ms"),
        _row(f"{what}: memory of the process", peak, 400, "MiB"),
    ]


def _row(name: str, value: float, goal: float, unit: str) -> Row:
    return Row(name=name, value=value, unit=unit, goal=f"<= {goal:g} {unit}", met=value <= goal)


def _cycle(site: Site) -> float:
    """Milliseconds of one cycle; then it is carried out."""
    start = time.process_time()
    decisions = decide(
        CycleInput(snapshot=site.snapshot, pending=site.pending, policy=Policy(), now=0.0),
        cache=site.cache,
    )
    took = 1000 * (time.process_time() - start)
    site.carry_out(decisions)
    return took
