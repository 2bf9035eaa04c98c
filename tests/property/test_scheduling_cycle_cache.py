"""A cache makes cycles cheaper, not different: long lives of small clusters, decided with and
without one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import (
    Admitted,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    MoveBudget,
    Node,
    Ordering,
    Policy,
    Queue,
    Resources,
    Snapshot,
    WaitingRule,
    decide,
)
from tests.unit.scheduler.builders import (
    after,
    bound,
    cluster,
    gang,
    pod,
    queue,
    room,
    still_waiting,
)

pytestmark = pytest.mark.extended(keep=20)

POLICIES = (
    Policy(),
    Policy(waiting=WaitingRule.STRICT),
    Policy(waiting=WaitingRule.BACKFILL, reservations=2),
    Policy(order=Ordering.FAIR_SHARE, surplus=True),
    Policy(repairs_preempt=True, moves=MoveBudget()),
)
QUEUES = (
    queue("org", 2, min_runtime_seconds=1.0),
    queue("research", 6, parent="org", borrowing_limit={"h100": 4}),
    queue("product", 4, parent="org", lending_limit={"h100": 2}, user_limit={"h100": 4}),
)
STEPS = 25


class Life:
    """A cluster to which things happen; between two cycles most objects stay the same."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.count = 0
        self.now = 0.0
        self.queues: tuple[Queue, ...] = QUEUES
        self.nodes = [
            Node(
                name=f"n{i}",
                pool="h100",
                domains=(f"rack-{i % 3}", f"n{i}"),
                allocatable=room(chance.choice([2, 4, 4]), cpu=8, pods=6),
            )
            for i in range(7)
        ]
        self.snapshot = self._cluster(())
        self.pending: list[Gang] = []

    def happen(self) -> None:
        """Something."""
        self.now += self.chance.choice([0.0, 1.0, 30.0])
        self.chance.choice(
            [
                self._submit,
                self._submit,
                self._finish,
                self._give_up,
                self._cordon,
                self._judge,
                self._strangers,
                self._lose,
                self._bind,
                self._leave,
                self._quota,
                self._rebuild,
                self._move_rack,
            ]
        )()

    def carry_out(self, decisions: Decisions) -> None:
        """What was decided is so."""
        self.snapshot = after(self.snapshot, self.pending, decisions, now=self.now)
        self.pending = still_waiting(self.pending, decisions)

    def _submit(self) -> None:
        chance = self.chance
        pods = chance.choice([1, 1, 2, 2, 3, 4])
        likes = gang(
            "job",
            nodes=pods,
            queue=chance.choice(["research", "product", "org", "nobody"]),
            user=chance.choice(["", "ann"]),
            priority=chance.choice([0, 0, 1]),
            per_pod=pod(chance.choice([1, 2, 2]), cpu=chance.choice([0, 2])),
            required_level=chance.choice([None, None, "rack"]),
            max_runtime_seconds=chance.choice([None, 20.0, 100.0]),
            sizes=(1, pods) if pods > 2 else (),
            retry_at=chance.choice([0.0, 0.0, 0.0, self.now + 20.0]),
        )
        group = chance.choice(["", "", "g"])
        for _ in range(2 if group else chance.randrange(1, 4)):
            self.count += 1
            self.pending.append(
                replace(
                    likes,
                    key=f"training/g{self.count:03}",
                    uid=f"uid-{self.count:03}",
                    queued_at=float(self.count),
                    group=group and f"{group}{self.count // 2}",
                    group_gangs=2 if group else 1,
                )
            )

    def _finish(self) -> None:
        if self.snapshot.admitted:
            self._drop(self.chance.choice(self.snapshot.admitted))

    def _give_up(self) -> None:
        if self.pending:
            self.pending.pop(self.chance.randrange(len(self.pending)))

    def _cordon(self) -> None:
        at = self.chance.randrange(len(self.nodes))
        self._renew(at, unschedulable=not self.snapshot.nodes[at].unschedulable)

    def _judge(self) -> None:
        suspicion = self.chance.randrange(3)
        quarantined = suspicion == 2 and self.chance.random() < 0.5
        at = self.chance.randrange(len(self.nodes))
        self._renew(at, suspicion=suspicion, quarantined=quarantined)

    def _strangers(self) -> None:
        at = self.chance.randrange(len(self.nodes))
        foreign = Resources(gpus=self.chance.randrange(3), pods=1)
        item = self.snapshot.nodes[at]
        self._renew(at, used=bound(item.name, self.snapshot.admitted) + foreign)

    def _lose(self) -> None:
        if self.snapshot.admitted:
            held = self.chance.choice(self.snapshot.admitted)
            lost = held.lost | {self.chance.randrange(len(held.assignment))}
            self._admit(held, replace(held, lost=lost, reserved=held.reserved - lost))

    def _bind(self) -> None:
        if self.snapshot.admitted:
            held = self.chance.choice(self.snapshot.admitted)
            self._admit(held, replace(held, reserved=frozenset()))

    def _leave(self) -> None:
        for held in self.snapshot.admitted:
            if held.leaving:
                self.pending.append(held.gang)
                self._drop(held)
                return

    def _quota(self) -> None:
        grown = replace(self.queues[1], nominal={"h100": self.chance.randrange(2, 9)})
        self.queues = (self.queues[0], grown, self.queues[2])
        self.snapshot = replace(self.snapshot, queues=self.queues)

    def _rebuild(self) -> None:
        """Equal values that are other objects, in another order."""
        self.snapshot = replace(
            self.snapshot,
            nodes=tuple(replace(node) for node in self.snapshot.nodes[::-1]),
            admitted=tuple(replace(held) for held in self.snapshot.admitted[::-1]),
        )
        self.pending = [replace(gang) for gang in self.pending[::-1]]

    def _move_rack(self) -> None:
        at = self.chance.randrange(len(self.nodes))
        self._renew(at, domains=(f"rack-{self.chance.randrange(3)}", self.snapshot.nodes[at].name))

    def _renew(self, at: int, **changes: object) -> None:
        nodes = list(self.snapshot.nodes)
        nodes[at] = replace(nodes[at], **changes)
        self.snapshot = replace(self.snapshot, nodes=tuple(nodes))

    def _drop(self, held: Admitted) -> None:
        left = tuple(each for each in self.snapshot.admitted if each is not held)
        self.snapshot = self._cluster(left, self.snapshot.nodes)

    def _admit(self, held: Admitted, other: Admitted) -> None:
        """The same gangs, one of them otherwise; what is bound is counted anew."""
        admitted = tuple(other if each is held else each for each in self.snapshot.admitted)
        self.snapshot = self._cluster(admitted, self.snapshot.nodes)

    def _cluster(self, admitted: tuple[Admitted, ...], nodes: tuple[Node, ...] = ()) -> Snapshot:
        bare = [replace(each, used=Resources()) for each in nodes or self.nodes]
        return cluster(*bare, levels=("rack", "host"), queues=self.queues, running=admitted)


@pytest.mark.parametrize("policy", POLICIES, ids=["best", "strict", "backfill", "fair", "moves"])
@pytest.mark.parametrize("seed", range(12))
def test_with_and_without_a_cache_the_decisions_are_equal(seed: int, policy: Policy) -> None:
    life, cache = Life(Random(seed)), CycleCache()
    for _ in range(STEPS):
        life.happen()
        given = {"snapshot": life.snapshot, "policy": policy, "now": life.now}
        fresh = decide(CycleInput(**given, pending=life.pending))
        assert decide(CycleInput(**given, pending=life.pending), cache=cache) == fresh
        assert decide(CycleInput(**given, pending=life.pending), cache=cache) == fresh
        life.carry_out(fresh)


class FullCluster(Life):
    """A full cluster in which most gangs are rejected again for the same reasons.

    No gang is of a kind whose rejection is never kept, and most events concern few gangs.
    """

    QUEUES = (
        Queue(name="org", nominal={"h100": 2}),
        Queue(name="research", nominal={"h100": 6}, parent="org", borrowing_limit={"h100": 4}),
        Queue(name="product", nominal={"h100": 9}, parent="org", lending_limit={"h100": 3}),
        Queue(name="alone", nominal={"h100": 9}),
    )

    def __init__(self, chance: Random) -> None:
        super().__init__(chance)
        self.queues = self.QUEUES
        self.snapshot = self._cluster(())
        for _ in range(8):
            self._submit()

    def happen(self) -> None:
        """An event. Half of all cycles follow an arrival or no event at all."""
        self.now += self.chance.choice([0.0, 1.0, 30.0])
        if self.chance.random() < 0.2:
            return
        self.chance.choice(
            [
                self._submit,
                self._submit,
                self._submit,
                self._finish,
                self._give_up,
                self._cordon,
                self._strangers,
                self._resize,
                self._hang,
                self._lose,
                self._bind,
                self._finish_and_rename,
                self._quota,
                self._rebuild,
            ]
        )()

    def _submit(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(1, 5)):
            self.count += 1
            self.pending.append(
                gang(
                    f"g{self.count:03}",
                    uid=f"uid-{self.count:03}",
                    nodes=chance.choice([1, 1, 2, 3]),
                    queue=chance.choice(["research", "product", "org", "alone"]),
                    priority=chance.choice([0, 0, 1]),
                    per_pod=pod(chance.choice([1, 2]), cpu=chance.choice([0, 4])),
                    required_level=chance.choice([None, None, "rack"]),
                    queued_at=float(self.count),
                )
            )

    def _quota(self) -> None:
        at = self.chance.randrange(len(self.queues))
        other = replace(self.queues[at], nominal={"h100": self.chance.randrange(2, 10)})
        self.queues = (*self.queues[:at], other, *self.queues[at + 1 :])
        self.snapshot = replace(self.snapshot, queues=self.queues)

    def _resize(self) -> None:
        at = self.chance.randrange(len(self.nodes))
        self._renew(at, allocatable=room(self.chance.choice([0, 2, 4]), cpu=8, pods=6))

    def _hang(self) -> None:
        at = self.chance.randrange(len(self.nodes))
        self._renew(at, hanging=self.chance.choice([(), ("team/old (finalizer x)",)]))

    def _finish_and_rename(self) -> None:
        """A job ends, and another one with its name waits."""
        if self.snapshot.admitted:
            held = self.chance.choice(self.snapshot.admitted)
            self._drop(held)
            self.count += 1
            self.pending.append(
                replace(held.gang, uid=f"uid-{self.count:03}", queued_at=float(self.count))
            )


@pytest.mark.parametrize("seed", range(16))
def test_rejections_that_are_kept_are_those_of_a_cycle_without_a_cache(seed: int) -> None:
    life, cache, kept = FullCluster(Random(seed)), CycleCache(), 0
    for _ in range(2 * STEPS):
        life.happen()
        given = {"snapshot": life.snapshot, "policy": Policy(), "now": life.now}
        given["explain"] = seed % 4 > 0
        fresh = decide(CycleInput(**given, pending=life.pending))
        before = set(map(id, cache.rejections.by_class.values()))
        assert decide(CycleInput(**given, pending=life.pending), cache=cache) == fresh
        kept += len(before & set(map(id, cache.rejections.by_class.values())))
        life.carry_out(fresh)
    assert kept > STEPS
