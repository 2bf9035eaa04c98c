"""Moves that free whole racks while nobody waits, and that there are none without a gain."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from drumline_scheduler import (
    Admitted,
    Decisions,
    Gang,
    MoveBudget,
    Policy,
    Resources,
    Role,
    Snapshot,
)
from drumline_scheduler.preemption.defragmentation import MAX_UNITS
from drumline_scheduler.queueing.search_costs import cost_of
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, queue, racks, run

MOVES = Policy(moves=MoveBudget(gangs=8, gpu_seconds=3600.0))


def scattered(**changes: object) -> Snapshot:
    """Three racks of two nodes of 4 GPUs, each rack with one gang of 2."""
    running = [
        admitted(gang(name, gpus=2), place, **changes)
        for name, place in (("a", "n0"), ("b", "n2"), ("c", "n4"))
    ]
    return cluster(*racks(count=3, nodes=2, gpus=4), running=running)


def decided(snapshot: Snapshot, *pending: Gang, policy: Policy = MOVES) -> Decisions:
    decisions = run(snapshot, *pending, policy=policy)
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    return decisions


def moves(decisions: Decisions) -> dict[str, tuple[str, ...]]:
    return {move.key.removeprefix("training/"): move.assignment for move in decisions.moves}


def test_all_gangs_end_in_one_rack_and_two_are_free() -> None:
    decisions = decided(scattered())
    assert moves(decisions) == {"a": ("n2",), "c": ("n3",)}
    assert {move.domains_freed for move in decisions.moves} == {2}
    assert [move.gpu_seconds_lost for move in decisions.moves] == [120.0, 120.0]


@pytest.mark.parametrize(
    ("snapshot", "policy"),
    [
        (scattered(), Policy()),
        (scattered(), Policy(moves=MoveBudget(gangs=8, gpu_seconds=119.0))),
        (scattered(preemptible=False), MOVES),
        (scattered(is_residual=True, is_foreign=True), MOVES),
        (replace(scattered(), queues=(queue("research", 99, min_runtime_seconds=1.0),)), MOVES),
        (cluster(*racks(), running=[admitted(gang("a"), "n0")]), MOVES),
        (
            cluster(
                *racks(gpus=2),
                running=[admitted(gang(f"r{i}", gpus=2), f"n{i}") for i in range(3)],
            ),
            MOVES,
        ),
    ],
    ids=[
        "off",
        "too dear",
        "not preemptible",
        "foreign pods",
        "too young",
        "in one rack already",
        "full",
    ],
)
def test_nobody_moves_without_a_gain_that_may_be_had(snapshot: Snapshot, policy: Policy) -> None:
    assert decided(snapshot, policy=policy).moves == ()


def test_the_budget_is_for_the_whole_cycle() -> None:
    item = Policy(moves=MoveBudget(gangs=1, gpu_seconds=3600.0))
    assert moves(decided(scattered(), policy=item)) == {"a": ("n2",)}


def test_gangs_that_are_costly_to_search_for_do_not_move() -> None:
    """Each of them takes milliseconds, and a cycle would try a rack after another."""
    costly = tuple(Role(name=f"r{i}", pods=1, per_pod=pod(0, cpu=1 + i)) for i in range(8))
    some = scattered()
    running = [
        admitted(replace(held.gang, roles=costly), *held.assignment * 9) for held in some.admitted
    ]
    cost = cost_of(running[0].gang)
    assert MAX_UNITS // 2 < cost <= MAX_UNITS
    assert len(moves(decided(some))) == 2
    assert len(moves(decided(replace(some, admitted=tuple(running))))) == 1


def test_nobody_moves_while_somebody_waits_for_capacity() -> None:
    waits = gang("x", nodes=9, gpus=4)
    assert decided(scattered(), replace(waits, nodes=6)).moves == ()


def test_nobody_moves_while_others_are_on_their_way() -> None:
    snapshot = scattered()
    first, *rest = snapshot.admitted
    assert decided(replace(snapshot, admitted=(replace(first, leaving=True), *rest))).moves == ()


def test_a_rack_in_which_foreign_pods_hold_gpus_is_not_emptied() -> None:
    snapshot = scattered()
    foreign = Resources(gpus=1, pods=1)
    nodes = tuple(
        replace(node, used=node.used + foreign) if node.name == "n1" else node
        for node in snapshot.nodes
    )
    assert moves(decided(replace(snapshot, nodes=nodes))) == {"b": ("n0",), "c": ("n1",)}


def test_a_gang_is_never_spread_wider_than_it_was() -> None:
    """The pair sits in one rack; elsewhere there is one place for it in each of two racks."""
    running = [
        admitted(gang("pair", nodes=2, gpus=4, preferred_level="rack"), "n0", "n1"),
        admitted(gang("b", gpus=4), "n2"),
        admitted(gang("c", gpus=4), "n4"),
    ]
    snapshot = cluster(*racks(count=3, nodes=2, gpus=4), running=running)
    assert moves(decided(snapshot)) == {"b": ("n5",)}


def test_blocks_are_freed_before_racks() -> None:
    nodes = [node(f"n{i}", f"b{i // 2}", f"r{i}", gpus=4) for i in range(4)]
    running = [admitted(gang(name, gpus=1), f"n{i}") for i, name in enumerate("abc")]
    snapshot = cluster(*nodes, levels=("block", "rack"), running=running)
    assert moves(decided(snapshot)) == {"c": ("n0",)}


@dataclass
class Churn:
    """Racks of 4-GPU nodes on which one-GPU jobs come and go; time goes by in cycles."""

    snapshot: Snapshot
    policy: Policy
    random: Random
    running: dict[str, Admitted] = field(default_factory=dict[str, Admitted])
    waiting: list[Gang] = field(default_factory=list[Gang])
    born: int = 0

    def cycle(self, *, ends: float, starts: int) -> Decisions:
        """Some jobs end, some come, one decision, carried out at once."""
        self.running = {
            uid: each for uid, each in self.running.items() if self.random.random() >= ends
        }
        for _ in range(starts):
            self.waiting.append(gang(f"j{self.born:05}", at=float(self.born)))
            self.born += 1
        world = cluster(
            *self.snapshot.nodes, running=self.running.values(), queues=self.snapshot.queues
        )
        decisions = run(world, *self.waiting, policy=self.policy)
        assert violations(snapshot=world, pending=self.waiting, decisions=decisions) == ()
        for placed in decisions.placed:
            item = next(gang for gang in self.waiting if gang.uid == placed.uid)
            self.running[item.uid] = admitted(item, *placed.assignment)
        self.waiting = [gang for gang in self.waiting if gang.uid not in self.running]
        for move in decisions.moves:
            self.running[move.uid] = replace(self.running[move.uid], assignment=move.assignment)
        return decisions

    def used_racks(self) -> int:
        """Racks in which anybody runs."""
        rack_of = {node.name: node.domains for node in self.snapshot.nodes}
        return len({rack_of[name] for held in self.running.values() for name in held.assignment})


def test_used_racks_stay_near_what_the_demand_needs_under_churn() -> None:
    """A peer's shape, smaller: 12 racks of 6 nodes of 4 GPUs, one-GPU jobs that end at random."""
    racks_of_24 = racks(count=12, nodes=6, gpus=4)
    world = cluster(*racks_of_24, queues=(queue("research", 999),))
    policy = Policy(moves=MoveBudget(gangs=24, gpu_seconds=24 * 60.0))
    churn = Churn(snapshot=world, policy=policy, random=Random(5))
    churn.cycle(ends=0.0, starts=200)
    moved = 0
    for _ in range(12):
        moved += len(churn.cycle(ends=0.15, starts=14).moves)
        churn.cycle(ends=0.0, starts=0)
        assert churn.used_racks() <= -(-len(churn.running) // 24) + 1
    assert moved > 0
