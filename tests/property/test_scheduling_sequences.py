"""Long lives of a small cluster: jobs come, end and break, nodes are cordoned, strangers move in.

After every event one cycle runs; the invariants must hold of it, a second cycle must find nothing
left to start (I8), and its decisions are applied before the next event.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from drumline.scheduling import Admitted, Gang, Node, Queue, Resources, Snapshot
from drumline.scheduling.invariants import violations
from tests.unit.scheduling.builders import after, cluster, gang, pod, room, run

LEVELS = ("rack", "host")
QUEUES = (
    Queue(name="research", nominal={"h100": 10}),
    Queue(name="product", nominal={"h100": 6}, max_priority=1),
)
PICK = st.integers(0, 1000)


class ClusterLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.pending: list[Gang] = []
        self.foreign: dict[str, Resources] = {}
        self.snapshot = Snapshot(nodes=(), pools=(), queues=())

    @initialize(gpus=st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=8))
    def start(self, gpus: list[int]) -> None:
        found = [
            Node(
                name=f"n{i}",
                pool="h100",
                domains=(f"rack-{i % 3}", f"n{i}"),
                allocatable=room(size, cpu=8, pods=6),
            )
            for i, size in enumerate(gpus)
        ]
        self.snapshot = cluster(*found, levels=LEVELS, queues=QUEUES)

    @rule(
        pods=st.integers(1, 6),
        gpus=st.integers(0, 2),
        cpu=st.sampled_from([0, 1, 4]),
        queue=st.sampled_from(["research", "product"]),
        priority=st.integers(0, 2),
        required=st.sampled_from([None, "rack", "host"]),
        preferred=st.sampled_from([None, "rack"]),
    )
    def submit(
        self,
        *,
        pods: int,
        gpus: int,
        cpu: int,
        queue: str,
        priority: int,
        required: str | None,
        preferred: str | None,
    ) -> None:
        self.count += 1
        one = gang(
            f"g{self.count}",
            nodes=pods,
            per_pod=pod(gpus, cpu=cpu),
            queue=queue,
            priority=priority,
            at=self.count,
            required_level=required,
            preferred_level=preferred,
        )
        self.pending.append(one)

    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        held = self.snapshot.admitted
        if held:
            gone = held[pick % len(held)]
            self._admit(tuple(one for one in held if one is not gone))

    @rule(pick=PICK)
    def bind(self, pick: int) -> None:
        """The promised pods of a gang come into being."""
        held = self.snapshot.admitted
        if held:
            chosen = held[pick % len(held)]
            bound = replace(chosen, reserved=frozenset())
            self._admit(tuple(bound if one is chosen else one for one in held))

    @rule(pick=PICK, place=PICK)
    def lose(self, pick: int, place: int) -> None:
        """A pod of a gang is lost; its place is given up."""
        held = self.snapshot.admitted
        if held:
            chosen = held[pick % len(held)]
            lost = chosen.lost | {place % chosen.gang.nodes}
            broken = replace(chosen, lost=lost, reserved=chosen.reserved - lost)
            self._admit(tuple(broken if one is chosen else one for one in held))

    @rule(pick=PICK, cordoned=st.booleans())
    def cordon(self, pick: int, *, cordoned: bool) -> None:
        self._change(pick, unschedulable=cordoned)

    @rule(pick=PICK, gpus=st.integers(0, 3))
    def foreign_pod(self, pick: int, gpus: int) -> None:
        """A stranger's pods, perhaps more of them than the node can take."""
        chosen = self.snapshot.nodes[pick % len(self.snapshot.nodes)].name
        self.foreign[chosen] = Resources(gpus=gpus, pods=min(1, gpus))
        self._admit(self.snapshot.admitted)

    @invariant()
    def one_cycle_keeps_every_invariant_and_leaves_nothing_to_do(self) -> None:
        decisions = run(self.snapshot, *self.pending)
        found = violations(snapshot=self.snapshot, pending=self.pending, decisions=decisions)
        assert found == ()
        settled = after(self.snapshot, self.pending, decisions)
        started = {one.uid for one in decisions.placed}
        left = [one for one in self.pending if one.uid not in started]
        assert run(settled, *left).placed == ()
        self.snapshot, self.pending = settled, left

    def _change(self, pick: int, **changes: bool) -> None:
        chosen = self.snapshot.nodes[pick % len(self.snapshot.nodes)]
        found = tuple(
            replace(node, **changes) if node is chosen else node for node in self.snapshot.nodes
        )
        self.snapshot = replace(self.snapshot, nodes=found)

    def _admit(self, held: tuple[Admitted, ...]) -> None:
        """The world with these gangs admitted, `used` counted anew."""
        bare = (
            replace(node, used=self.foreign.get(node.name, Resources()))
            for node in self.snapshot.nodes
        )
        self.snapshot = cluster(*bare, levels=LEVELS, queues=QUEUES, running=held)


ClusterLife.TestCase.settings = settings(
    max_examples=300, stateful_step_count=15, derandomize=True, deadline=None
)
TestClusterLife = ClusterLife.TestCase
