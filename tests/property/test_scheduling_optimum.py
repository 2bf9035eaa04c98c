"""One gang on thousands of small clusters: what it gets is the best there is, and a no is true.

Brute force looks at every placement (`scheduling_best_placement`), at every set of victims, and
tries what a rejection says would help.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import Blocked, Decisions, Queue, Remedy, RemedyKind
from tests.property.scale import many
from tests.property.scheduling_best_placement import shortfalls
from tests.property.scheduling_checks import Judge
from tests.property.scheduling_placements import free_now, table
from tests.property.scheduling_worlds import Feature, World, without, world

pytestmark = pytest.mark.extended(keep=4)

SHAPES = (
    Feature.REQUIRED,
    Feature.PREFERRED,
    Feature.SLICES,
    Feature.BALANCED,
    Feature.ROLES,
    Feature.EXCLUSION,
)
CLAIMS = (*SHAPES, Feature.BORROWING, Feature.USER_CAP, Feature.MINIMUM, Feature.POOLS)
NOT_ALWAYS_EVEN = frozenset({Feature.BALANCED, Feature.SLICES, Feature.ROLES})
"""All three together: such a gang starts whenever it can, in one cluster of some hundreds over one
domain more than needed; test_scheduling_pairs has each two of them."""
PARTS = 10


def lone(seed: int) -> World:
    """A gang with some wishes about its shape, on nodes that all have their labels."""
    random = Random(seed)
    features = frozenset(each for each in SHAPES if random.random() < 0.4)
    if features >= NOT_ALWAYS_EVEN:
        features -= {Feature.BALANCED}
    result = world(seed, features)
    nodes = tuple(
        replace(node, domains=tuple(name or "b1" for name in node.domains))
        for node in result.snapshot.nodes
    )
    keys = [held.gang.key for held in result.snapshot.admitted]
    gone = keys[random.randint(0, len(keys)) :]
    emptier = without(replace(result, snapshot=replace(result.snapshot, nodes=nodes)), gone)
    return replace(emptier, pending=result.pending[:1])


@pytest.mark.parametrize("part", range(PARTS))
def test_a_placement_is_the_best_of_all_and_a_refusal_is_true(part: int) -> None:
    placed = 0
    for seed in range(part, many(1000, 10_000), PARTS):
        item = lone(seed)
        decisions = item.decide()
        assert Judge(world=item, decisions=decisions).problems() == [], seed
        for answer in decisions.placed:
            placed += 1
            gang = item.pending[0]
            pool = table(
                item.snapshot,
                gang,
                pool=answer.pool,
                size=len(answer.assignment) - gang.extras,
                free=free_now(item.snapshot),
            )
            assert shortfalls(pool, answer.assignment) == [], seed
    print(f"{placed} placements were the best of all")
    assert placed > 20


@pytest.mark.parametrize("part", range(PARTS))
def test_victims_cost_no_more_than_the_cheapest_lawful_ones(part: int) -> None:
    ratios: list[float] = []
    for seed in range(part, many(1000, 10_000), PARTS):
        random = Random(seed)
        some = {each for each in CLAIMS if random.random() < 0.3}
        judge = world(seed, frozenset({Feature.PREEMPTION, *some}))
        judged = Judge(world=judge, decisions=judge.decide())
        assert judged.problems() == [], seed
        ratios += judged.ratios
    print(f"{len(ratios)} preemptions at {sum(ratios) / len(ratios):.4f} of the least cost")
    assert len(ratios) > 10
    assert sum(ratios) / len(ratios) <= 1.05


def test_what_a_refusal_says_would_help_does() -> None:
    tried: dict[RemedyKind, int] = {}
    for seed in range(many(1500, 10_000)):
        random = Random(seed)
        some = frozenset(each for each in CLAIMS if random.random() < 0.3)
        item = world(seed, some)
        item = replace(item, pending=item.pending[:1])
        for blocked in item.decide().blocked:
            helped = _with_remedy(item, blocked)
            if helped is not None:
                assert blocked.remedy is not None
                assert _starts(helped.decide()), (seed, blocked)
                tried[blocked.remedy.kind] = tried.get(blocked.remedy.kind, 0) + 1
    print({str(kind): count for kind, count in tried.items()})
    assert {RemedyKind.WAIT_FOR, RemedyKind.ASK_FOR_LESS, RemedyKind.RAISE_QUOTA} <= tried.keys()


def _starts(decisions: Decisions) -> bool:
    return len(decisions.placed) == 1


def _with_remedy(item: World, blocked: Blocked) -> World | None:
    """The world with what would help; None where trying it is left to the tests of remedies."""
    remedy = blocked.remedy
    if remedy is None:
        return None
    gang = item.pending[0]
    match remedy.kind:
        case RemedyKind.WAIT_FOR:
            ours = all(key.startswith("training/") for key in blocked.blockers)
            return without(item, blocked.blockers) if ours else None
        case RemedyKind.ASK_FOR_LESS:
            return replace(item, pending=(replace(gang, nodes=remedy.amount, sizes=()),))
        case RemedyKind.RELAX_TOPOLOGY:
            return replace(item, pending=(replace(gang, required_level=remedy.where or None),))
        case RemedyKind.RAISE_QUOTA | RemedyKind.RAISE_USER_LIMIT:
            queues = tuple(_raised(queue, remedy) for queue in item.snapshot.queues)
            return replace(item, snapshot=replace(item.snapshot, queues=queues))
        case _:
            return None


def _raised(queue: Queue, remedy: Remedy) -> Queue:
    if queue.name != remedy.where:
        return queue
    if remedy.kind is RemedyKind.RAISE_QUOTA:
        nominal = {**queue.nominal}
        nominal[remedy.pool] = nominal.get(remedy.pool, 0) + remedy.amount
        return replace(queue, nominal=nominal)
    limits = {**(queue.user_limit or {})}
    limits[remedy.pool] += remedy.amount
    return replace(queue, user_limit=limits)
