"""Gangs race for nodes that come in part, late, or never: none waits forever for what there is.

`DRUMLINE_PROPERTIES=all` (`make test-all WHAT=properties`) takes many times as many worlds.
"""

from __future__ import annotations

import os

import pytest

from drumline_scheduler.autoscaling.node_demands import DemandEnd
from tests.property.growing_world import LOOK_SECONDS, GrowingWorld, growing_world

WORLDS = 2000 if os.environ.get("DRUMLINE_PROPERTIES") == "all" else 20
STEPS = 25
BOOT_SECONDS = 3 * LOOK_SECONDS
NOTICE_LOOKS = 4
ROUNDS = 100
"""More than any of these worlds needs: pauses after a timeout double up to an hour."""


def race(world: GrowingWorld) -> None:
    """Everything happens in any order."""
    random = world.random
    for _ in range(STEPS):
        for act, chance in (
            (world.submit, 0.35),
            (world.cycle, 0.7),
            (lambda: world.scale_up(most=random.randint(1, 3)), 0.5),
            (lambda: world.scale_down(chance=0.5), 0.2),
            (world.withdraw, 0.08),
            (world.refuse, 0.1),
            (world.change_leader, 0.08),
            (world.notice, 0.1),
            (world.take_back, 0.05),
            (world.lose, 0.05),
        ):
            if random.random() < chance:
                act()
        if world.running and random.random() < 0.1:
            world.end(random.choice(sorted(world.running)))
        world.now += random.choice([1.0, LOOK_SECONDS, 10 * LOOK_SECONDS])


@pytest.mark.extended(keep=1, of="growing worlds")
@pytest.mark.parametrize("first", range(0, WORLDS, 20))
def test_who_can_start_starts_whatever_races(first: int) -> None:
    ends: set[DemandEnd] = set()
    for seed in range(first, first + 20):
        world = growing_world(seed)
        race(world)
        world.settle(rounds=ROUNDS)
        # Nobody holds a part that another could start with.
        assert [each.key for each in world.waiting if world.could_start(each)] == [], seed
        assert world.repairable == [], seed
        for _ in range(world.submitted):  # as those that run end, the others follow
            for uid in sorted(world.running):
                world.end(uid)
            world.settle(rounds=ROUNDS)
        assert [each.key for each in world.waiting if world.could_start(each)] == [], seed
        # Nothing is asked for that nobody starts with, and nothing that came for it stays.
        world.waiting.clear()
        world.settle(rounds=ROUNDS)
        assert (world.demands.open, world.placeholders, world.nodes) == ((), {}, {}), seed
        ends |= {end for _, end in world.ends}
    assert ends == set(DemandEnd)


@pytest.mark.extended(keep=1, of="growing worlds")
@pytest.mark.parametrize("first", range(0, WORLDS, 20))
def test_where_the_cloud_has_enough_no_node_is_ordered_that_no_gang_takes(first: int) -> None:
    ordered = 0
    for seed in range(first, first + 20):
        world = growing_world(seed)
        world.cloud = dict.fromkeys(world.cloud, 100)
        world.limits = dict.fromkeys(world.limits, 100)
        for _ in range(STEPS):
            if world.random.random() < 0.3:
                world.submit()
            world.cycle()
            world.scale_up(most=world.random.randint(0, 3))
            world.now += LOOK_SECONDS
        world.settle(rounds=ROUNDS)
        assert world.waiting == [], seed
        taken = {name for held in world.running.values() for name in held.assignment}
        assert taken == world.nodes.keys(), seed
        assert len(taken) == world.ordered, seed
        ordered += world.ordered
    assert ordered > 100


def reclaimed(seed: int, *, notices: bool) -> GrowingWorld:
    """A world after the cloud took three nodes, each two minutes after a notice or without one."""
    world = growing_world(seed)
    world.cloud = dict.fromkeys(world.cloud, 100)
    world.limits = dict.fromkeys(world.limits, 100)
    for _ in range(4):
        world.submit()
    world.settle(rounds=ROUNDS)
    world.boot_seconds = BOOT_SECONDS
    for _ in range(3):
        if notices:
            world.notice()
        for step in range(10):
            if step == NOTICE_LOOKS:
                world.lose()
            world.cycle()
            world.scale_up(most=100)
            world.look()
    world.settle(rounds=ROUNDS)
    return world


@pytest.mark.extended(keep=1, of="growing worlds")
@pytest.mark.parametrize("first", range(0, WORLDS, 20))
def test_after_a_notice_gangs_lack_nodes_for_less_time_and_no_more_nodes_come(first: int) -> None:
    for seed in range(first, first + 20):
        without, noticed = (reclaimed(seed, notices=each) for each in (False, True))
        assert (without.repairable, noticed.repairable) == ([], []), seed
        assert (noticed.idle, noticed.ordered) == (0, without.ordered), seed
        # A node boots for three looks, and is asked for four before the old one is lost.
        assert without.broken_seconds > noticed.broken_seconds == 0.0, seed
