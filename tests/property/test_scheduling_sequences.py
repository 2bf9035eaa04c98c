"""Long lives of a small cluster: jobs come and end, break, leave for others, shrink and grow; nodes
are cordoned and closed, strangers move in.

After every event one cycle runs; the invariants must hold of it, and a second cycle must find
nothing left to do for anybody whom the first one did not serve (I8). It may send somebody away for
a gang whose hopes one further back has just taken; then all is quiet.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from drumline_scheduler import Admitted, Decisions, Gang, Node, Queue, Resources, Snapshot
from tests.property.invariants import violations
from tests.property.scale import many
from tests.unit.scheduler.builders import (
    after,
    bound,
    cluster,
    gang,
    pod,
    queue,
    room,
    run,
    still_waiting,
)

LEVELS = ("rack", "host")
NAMES = ["research", "product", "lab", "org"]
ALONE = (
    Queue(name="research", nominal={"h100": 10}),
    Queue(name="product", nominal={"h100": 6}, max_priority=1),
    Queue(name="lab", nominal={"h100": 0}),
    Queue(name="org", nominal={"h100": 4}),
)
COHORT = (
    queue("org", 2, min_runtime_seconds=1.0),
    queue("research", 6, parent="org", borrowing_limit={"h100": 4}),
    queue("product", 4, parent="org", lending_limit={"h100": 2}),
    queue("lab", 0, parent="product"),
)
PICK = st.integers(0, 1000)


@st.composite
def jobs(draw: st.DrawFn) -> Gang:
    pods = draw(st.sampled_from([1, 1, 2, 2, 3, 4, 6]))
    elastic = draw(st.booleans())
    return gang(
        "job",
        nodes=pods,
        per_pod=pod(draw(st.sampled_from([1, 1, 2, 0])), cpu=draw(st.sampled_from([0, 0, 1, 4]))),
        queue=draw(st.sampled_from(NAMES)),
        priority=draw(st.sampled_from([0, 1, 1, 2])),
        required_level=draw(st.sampled_from([None, None, "rack", "host"])),
        preferred_level=draw(st.sampled_from([None, "rack"])),
        sizes=tuple(sorted({max(1, pods // 3), max(1, pods // 2), pods})) if elastic else (),
    )


class ClusterLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.pending: list[Gang] = []
        self.foreign: dict[str, Resources] = {}
        self.ending: list[tuple[str, Resources]] = []
        self.clock = 0.0
        self.snapshot = Snapshot(nodes=(), pools=(), queues=())

    @initialize(
        gpus=st.lists(st.sampled_from([1, 2, 4, 4]), min_size=3, max_size=8),
        queues=st.sampled_from([ALONE, COHORT, COHORT]),
    )
    def start(self, gpus: list[int], queues: tuple[Queue, ...]) -> None:
        self.queues = queues
        result = [
            Node(
                name=f"n{i}",
                pool="h100",
                domains=(f"rack-{i % 3}", f"n{i}"),
                allocatable=room(size, cpu=8, pods=6),
            )
            for i, size in enumerate(gpus)
        ]
        self.snapshot = cluster(*result, levels=LEVELS, queues=queues)

    @rule(wanted=st.lists(jobs(), min_size=1, max_size=6))
    def submit(self, wanted: list[Gang]) -> None:
        for each in wanted:
            self.count += 1
            name = f"g{self.count:03}"
            self.pending.append(
                replace(each, key=f"training/{name}", uid=f"uid-{name}", queued_at=self.count)
            )

    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        held = self.snapshot.admitted
        if held:
            gone = held[pick % len(held)]
            self._admit(tuple(each for each in held if each is not gone))

    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        """A waiting job is deleted, one that waits for its victims too."""
        if self.pending:
            del self.pending[pick % len(self.pending)]

    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        """A gang that was told to go has saved: it waits again, and its pods are being deleted."""
        leaving = [held for held in self.snapshot.admitted if held.leaving]
        if leaving:
            gone = leaving[pick % len(leaving)]
            places = {*gone.assignment}
            self.ending += [(name, bound(name, [gone])) for name in sorted(places)]
            self.pending.append(gone.gang)
            self._admit(tuple(held for held in self.snapshot.admitted if held is not gone))

    @rule()
    def pods_end(self) -> None:
        """What was being deleted is gone."""
        self.ending.clear()
        self._admit(self.snapshot.admitted)

    @rule(pick=PICK, seconds=st.integers(0, 100))
    def work(self, pick: int, seconds: int) -> None:
        """Time passes; a gang has work that no checkpoint holds yet."""
        self.clock += 1.0
        held = self.snapshot.admitted
        if held:
            chosen = held[pick % len(held)]
            busy = replace(chosen, gpu_seconds_at_risk=float(seconds * chosen.gpus))
            self._admit(tuple(busy if each is chosen else each for each in held))

    @rule(pick=PICK)
    def bind(self, pick: int) -> None:
        """The promised pods of a gang come into being."""
        held = self.snapshot.admitted
        if held:
            chosen = held[pick % len(held)]
            bound = replace(chosen, reserved=frozenset())
            self._admit(tuple(bound if each is chosen else each for each in held))

    @rule(pick=PICK, place=PICK)
    def lose(self, pick: int, place: int) -> None:
        """A pod of a gang is lost; its place is given up."""
        held = self.snapshot.admitted
        if held:
            chosen = held[pick % len(held)]
            lost = chosen.lost | {place % chosen.size}
            broken = replace(chosen, lost=lost, reserved=chosen.reserved - lost)
            self._admit(tuple(broken if each is chosen else each for each in held))

    @rule(pick=PICK, cordoned=st.booleans())
    def cordon(self, pick: int, *, cordoned: bool) -> None:
        self._change(pick, unschedulable=cordoned)

    @rule(pick=PICK, why=st.sampled_from(["", "spot reclaim"]))
    def close(self, pick: int, why: str) -> None:
        self._change(pick, closed=why)

    @rule(pick=PICK, suspicion=st.integers(0, 2), quarantined=st.booleans())
    def judge(self, pick: int, suspicion: int, *, quarantined: bool) -> None:
        self._change(pick, suspicion=suspicion, quarantined=quarantined)

    @rule(pick=PICK, gpus=st.integers(0, 3))
    def foreign_pod(self, pick: int, gpus: int) -> None:
        """A stranger's pods, perhaps more of them than the node can take."""
        chosen = self.snapshot.nodes[pick % len(self.snapshot.nodes)].name
        self.foreign[chosen] = Resources(gpus=gpus, pods=min(1, gpus))
        self._admit(self.snapshot.admitted)

    @invariant()
    def one_cycle_keeps_every_invariant_and_leaves_nothing_to_do(self) -> None:
        first = self._cycle()
        second = self._cycle()
        if not any("shrinks" in resized.message for resized in first.resized):
            # what a smaller gang gives up of its quota or its places is free only now
            served = {each.uid for each in (*first.placed, *first.preemptions)}
            assert {each.uid for each in (*second.placed, *second.resized)} <= served
        assert not second.preemptions or self._cycle() == self._cycle()

    def _cycle(self) -> Decisions:
        decisions = run(self.snapshot, *self.pending, now=self.clock)
        result = violations(
            snapshot=self.snapshot, pending=self.pending, decisions=decisions, now=self.clock
        )
        assert result == ()
        self.snapshot = after(self.snapshot, self.pending, decisions, now=self.clock)
        self.pending = still_waiting(self.pending, decisions)
        return decisions

    def _change(self, pick: int, **changes: bool | str) -> None:
        chosen = self.snapshot.nodes[pick % len(self.snapshot.nodes)]
        result = tuple(
            replace(node, **changes) if node is chosen else node for node in self.snapshot.nodes
        )
        self.snapshot = replace(self.snapshot, nodes=result)

    def _admit(self, held: tuple[Admitted, ...]) -> None:
        """The world with these gangs admitted, `used` counted anew."""
        going: dict[str, Resources] = {}
        for name, amounts in self.ending:
            going[name] = going.get(name, Resources()) + amounts
        bare = (
            replace(
                node,
                used=self.foreign.get(node.name, Resources()) + going.get(node.name, Resources()),
                terminating=going.get(node.name, Resources()),
            )
            for node in self.snapshot.nodes
        )
        self.snapshot = cluster(*bare, levels=LEVELS, queues=self.queues, running=held)


ClusterLife.TestCase.settings = settings(
    max_examples=many(100, 1000), stateful_step_count=25, derandomize=True, deadline=None
)
TestClusterLife = ClusterLife.TestCase
