"""Groups that preempt against brute force: all gangs or none, and nobody is harmed in vain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest

from drumline_scheduler import Admitted, Gang, Queue, Snapshot
from tests.property.invariants import violations
from tests.property.scale import many
from tests.unit.scheduler.builders import (
    PREEMPTS,
    admitted,
    after,
    cluster,
    gang,
    node,
    run,
    still_waiting,
    without,
)

WORLDS = many(200, 5000)


def world(seed: int) -> tuple[Snapshot, list[Gang]]:
    """Up to four nodes, up to five jobs that run, and a group of two or three."""
    random = Random(f"group {seed}")
    nodes = [
        node(f"n{i}", "rack-0", gpus=random.choice([2, 4])) for i in range(random.randint(2, 4))
    ]
    free = {each.name: each.allocatable.gpus for each in nodes}
    running: list[Admitted] = []
    for i in range(random.randint(1, 5)):
        gpus = random.choice([1, 2, 2])
        open_to = [name for name, left in free.items() if left >= gpus]
        if open_to:
            name = random.choice(open_to)
            free[name] -= gpus
            job = gang(f"r{i}", gpus=gpus, priority=random.choice([0, 0, 1, 5]))
            risk = float(random.randint(0, 500))
            running.append(
                admitted(job, name, gpu_seconds_at_risk=risk, preemptible=random.random() < 0.9)
            )
    count = random.choice([2, 2, 3])
    waiting = [
        replace(
            gang(
                f"g{i}", nodes=random.choice([1, 1, 2]), gpus=random.choice([1, 2, 3]), at=float(i)
            ),
            group="g",
            group_gangs=count,
            priority=2,
        )
        for i in range(count)
    ]
    queue = Queue(name="research", nominal={"h100": 100}, preemption=PREEMPTS)
    return cluster(*nodes, queues=(queue,), running=running), waiting


def fits(snapshot: Snapshot, gangs: Sequence[Gang], *, gone: Sequence[Admitted] = ()) -> bool:
    """Return whether all pods of all gangs find nodes. All placements are tried."""
    free = {each.name: each.allocatable.gpus - each.used.gpus for each in snapshot.nodes}
    for held in gone:
        free[held.assignment[0]] += held.gpus
    pods = [each.per_pod.gpus for each in gangs for _ in range(each.nodes)]
    for places in product(free, repeat=len(pods)):
        left = dict(free)
        for name, gpus in zip(places, pods, strict=True):
            left[name] -= gpus
        if min(left.values()) >= 0:
            return True
    return False


def victim_sets(snapshot: Snapshot) -> Iterator[tuple[Admitted, ...]]:
    """All sets of jobs that may leave for a gang of priority 2, the smallest first."""
    may = [held for held in snapshot.admitted if held.preemptible and held.gang.priority < 2]
    for count in range(len(may) + 1):
        yield from combinations(may, count)


@pytest.mark.extended(keep=20)
@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_group_starts_preempts_or_waits_as_brute_force_says(seed: int) -> None:
    snapshot, waiting = world(seed)
    decisions = run(snapshot, *waiting)
    assert violations(snapshot=snapshot, pending=waiting, decisions=decisions) == ()
    placed, kept = len(decisions.placed), len(decisions.preemptions)
    if fits(snapshot, waiting):
        assert (placed, kept) == (len(waiting), 0)
        return
    assert placed == 0
    if not any(fits(snapshot, waiting, gone=gone) for gone in victim_sets(snapshot)):
        assert kept == 0
        return
    assert kept == len(waiting)
    victims = {victim.uid for each in decisions.preemptions for victim in each.victims}
    gone = [held for held in snapshot.admitted if held.gang.uid in victims]
    assert fits(snapshot, waiting, gone=gone)
    for spared in gone:
        assert not fits(snapshot, waiting, gone=[each for each in gone if each is not spared])
    # The victims leave in any order, and the group starts with the last of them.
    line, held = still_waiting(waiting, decisions), after(snapshot, waiting, decisions)
    for number, each in enumerate(Random(seed).sample(gone, len(gone)), start=1):
        held = without(held, each.gang.key.removeprefix("training/"))
        started = run(held, *line)
        assert len(started.placed) == (len(waiting) if number == len(gone) else 0)
        assert started.preemptions == ()


def test_brute_force_sees_each_outcome() -> None:
    outcomes = [run(world(seed)[0], *world(seed)[1]) for seed in range(30)]
    assert {(bool(each.placed), bool(each.preemptions)) for each in outcomes} == {
        *((True, False), (False, True), (False, False))
    }
