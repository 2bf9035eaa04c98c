"""The law of preemption: what the engine asks step by step, against its definition as a whole.

Random trees of queues with weights, limits, caps and a past; random holdings; every set of up to
three victims. The engine's `Claim` and `invariants.policy_check` have to agree on each set, in
whatever order it was picked, and every lawful set has to lower the potential (I5).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from drumline_scheduler import Gang, Node, Policy, Pool, Queue, Resources, Snapshot
from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.model import PreemptionRule, Reclaim, WithinQueue
from drumline_scheduler.quota.quota_ledger import QuotaLedger, ledger_of
from tests.property.invariants.policy_check import RunningGang, policy_violations, potential
from tests.property.invariants.quota import QueueShares, past_gpus, shares_of
from tests.unit.scheduler.builders import gang, queue

NAMES = ("org", "west", "a", "b", "c", "d")
POOL_GPUS = 16


def some_queue(random: Random, name: str, parent: str | None, *, any_: Reclaim) -> Queue:
    rule = PreemptionRule(
        within_queue=WithinQueue.LOWER_PRIORITY,
        reclaim=random.choice([any_, Reclaim.FAIR_SHARE, Reclaim.FAIR_SHARE]),
    )

    def sometimes(most: int) -> dict[str, int] | None:
        return random.choice([None, None, {"h100": random.randint(0, most)}])

    return queue(
        name,
        random.choice([0, 0, 1, 2, 4]),
        parent=parent,
        preemption=rule,
        weight=random.choice([1.0, 1.0, 2.0, 3.0, 0.5]),
        borrowing_limit=sometimes(5),
        lending_limit=sometimes(3),
        user_limit=sometimes(6),
    )


def world(seed: int) -> tuple[Snapshot, list[Gang], Gang]:
    """Queues in three levels, up to 7 gangs that were let in as the quota allowed, and one more."""
    random = Random(seed)
    parents = (None, "org", "west", "west", "org", random.choice(["org", "a", None]))
    any_ = Reclaim.LOWER_PRIORITY if seed % 2 else Reclaim.ANY
    queues = [some_queue(random, *pair, any_=any_) for pair in zip(NAMES, parents, strict=True)]
    history = {name: random.random() * 30_000 for name in NAMES} if seed % 3 == 0 else {}
    snapshot = Snapshot(
        nodes=(Node(name="n", pool="h100", allocatable=Resources(gpus=POOL_GPUS, pods=99)),),
        pools=(Pool(name="h100"),),
        queues=tuple(queues),
        history=history,
    )
    some = [
        gang(
            f"g{i}",
            queue=random.choice(NAMES),
            gpus=random.choice([0, 1, 1, 2, 2, 3]),
            nodes=random.randint(1, 2),
            priority=random.randint(0, 2),
            user=random.choice("uv"),
        )
        for i in range(9)
    ]
    book = ledger_of(snapshot=snapshot, policy=Policy())
    running = [each for each in some[:-1] if start(book, each)]
    return snapshot, running[:7], some[-1]


def start(book: QuotaLedger, item: Gang) -> bool:
    room = book.has_room(gang=item, pool="h100", size=item.nodes)
    if room:
        book.hold(gang=item, pool="h100", size=item.nodes)
    return room


def shares(snapshot: Snapshot, running: list[Gang]) -> QueueShares:
    own: dict[str, int] = {}
    users: dict[tuple[str, str], int] = {}
    for held in running:
        own[held.queue] = own.get(held.queue, 0) + held.gpus
        users[held.queue, held.user] = users.get((held.queue, held.user), 0) + held.gpus
    result = shares_of(queues=snapshot.queues, pool="h100", own=own)
    past = past_gpus(snapshot=snapshot, policy=Policy(), pool="h100")
    return replace(result, past=past, users=users)


def as_running(gangs: list[Gang]) -> list[RunningGang]:
    return [RunningGang(gang=gang, gpus=gang.gpus) for gang in gangs]


def judge(seed: int) -> tuple[int, int]:
    """Compare all sets of one world; how many were lawful, and how many by fair share."""
    snapshot, running, asks = world(seed)
    book = ledger_of(snapshot=snapshot, policy=Policy())
    for item in running:
        book.hold(gang=item, pool="h100", size=item.nodes)
    rule, random = book.tree.queues[asks.queue].preemption, Random(seed)
    claim = book.claim(gang=asks, pool="h100", size=asks.nodes, rule=rule)
    before, by_share = shares(snapshot, running), 0
    own = sum(held.gpus for held in running if held.queue == asks.queue)
    reasons = {
        held.uid: claim.reason(
            leaf=book.tree.leaf_of[held.queue],
            gpus=held.gpus,
            lower_priority=held.priority < asks.priority,
        )
        for held in running
    }
    lawful = 0
    for size in range(1, 4):
        for gone in combinations(running, size):
            problems = policy_violations(
                shares=before, asks=as_running([asks])[0], victims=as_running(list(gone))
            )
            if not all(reasons[each.uid] for each in gone):
                assert problems, (seed, [each.key for each in gone])
                continue
            for entry in random.sample(gone, len(gone)):
                claim.take(leaf=book.tree.leaf_of[entry.queue], gpus=entry.gpus, user=entry.user)
            holds = claim.holds()
            assert holds == (not problems), (seed, [each.key for each in gone], problems)
            if holds:
                lawful += 1
                by_share += VictimReason.FAIR_SHARE in [reasons[each.uid] for each in gone]
                assert claim.within_reach
                stay = [held for held in running if held not in gone]
                after = shares(snapshot, [*stay, asks])
                new, old = as_running([*stay, asks]), as_running(running)
                assert potential(shares=after, running=new) < potential(shares=before, running=old)
            for other_each in random.sample(gone, len(gone)):
                claim.give_back(
                    leaf=book.tree.leaf_of[other_each.queue],
                    gpus=other_each.gpus,
                    user=other_each.user,
                )
            if holds:
                for another in gone:
                    elsewhere = another.queue != asks.queue
                    leaf = book.tree.leaf_of[another.queue]
                    assert not elsewhere or claim.may_reclaim(
                        leaf=leaf, gpus=another.gpus, freed=own
                    )
                    taken = sum(other.gpus for other in gone if other.queue == another.queue)
                    largest = max(other.gpus for other in gone if other.queue == another.queue)
                    assert not elsewhere or taken <= claim.reclaimable(leaf=leaf, largest=largest)
    return lawful, by_share


@pytest.mark.parametrize("start", [0, 40, 80])
def test_the_engine_and_the_definition_agree_and_every_preemption_lowers_the_potential(
    start: int,
) -> None:
    result = [judge(seed) for seed in range(start, start + 40)]
    assert sum(lawful for lawful, _ in result) > 10
    assert sum(by_share for _, by_share in result) > 0
