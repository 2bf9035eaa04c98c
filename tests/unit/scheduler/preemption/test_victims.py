"""The cheapest set of victims, with few candidates and with more than can be tried in all sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from drumline_scheduler import Admitted, Gang, Node, Policy, Snapshot
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit
from drumline_scheduler.preemption.node_costs import NodeCosts
from drumline_scheduler.preemption.victim_scopes import MAX_WEIGHED
from drumline_scheduler.preemption.victims import MAX_EXACT_CANDIDATES
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, queue, racks, run

ONLY_WORK = Policy(restart_seconds=0.0, priority_seconds=0.0)
"""A victim costs the work it loses, and nothing else."""
ALONE = (queue("research", 10_000),)
FEW, MANY = 0, MAX_EXACT_CANDIDATES
"""How many others run that nobody would rather send away."""


def job(name: str, *places: str, gpus: int, cost: float) -> Admitted:
    return admitted(gang(name, nodes=len(places), gpus=gpus), *places, gpu_seconds_at_risk=cost)


def dear(count: int, *, gpus: int) -> tuple[list[Node], list[Admitted]]:
    """Full nodes in a rack of their own, on which each gang is dear."""
    nodes = [node(f"z{i}", "rack-z", gpus=gpus) for i in range(count)]
    return nodes, [job(f"z{i}", f"z{i}", gpus=gpus, cost=10_000) for i in range(count)]


def sent_away(snapshot: Snapshot, item: Gang) -> set[str]:
    preemptions = run(snapshot, item, policy=ONLY_WORK).preemptions
    return {
        v.key.removeprefix("training/") for preemption in preemptions for v in preemption.victims
    }


def short_of_quota(*held: tuple[str, int, float], quota: int, cohort_usage: int) -> Snapshot:
    """(name, GPUs, cost) on nodes of their own; there is room enough, but no quota."""
    running = [
        job(name, f"n{i}", gpus=gpus, cost=cost) for i, (name, gpus, cost) in enumerate(held)
    ]
    _, more = dear(cohort_usage, gpus=1)
    nodes = [node(f"n{i}", "rack-0", gpus=8) for i in range(len(held) + 2)]
    nodes += [node(f"z{i}", "rack-0", gpus=8) for i in range(cohort_usage)]
    queues = (queue("research", quota + cohort_usage),)
    return cluster(*nodes, running=[*running, *more], queues=queues)


@pytest.mark.parametrize("rest", [FEW, MANY])
def test_who_turned_out_not_to_be_needed_stays(rest: int) -> None:
    """By cost for each GPU `small` is the first to go; `large` is enough by itself."""
    snapshot = short_of_quota(("small", 1, 1.0), ("large", 8, 8.8), quota=9, cohort_usage=rest)
    assert sent_away(snapshot, gang("x", gpus=8, priority=5)) == {"large"}


@pytest.mark.parametrize("rest", [FEW, MANY])
def test_a_dear_victim_is_exchanged_for_a_cheaper_one_that_does_as_well(rest: int) -> None:
    """By cost for each GPU `b` goes before `c`; but beside `a` it is more than is needed."""
    snapshot = short_of_quota(
        ("a", 3, 3.0), ("b", 4, 4.4), ("c", 2, 2.4), quota=9, cohort_usage=rest
    )
    assert sent_away(snapshot, gang("x", gpus=5, priority=5)) == {"a", "c"}


def test_of_few_candidates_all_sets_are_tried() -> None:
    """Two together cost less than the one that is the cheapest for each GPU and does alone."""
    snapshot = short_of_quota(
        ("a", 3, 3.0), ("b", 4, 4.1), ("c", 1, 1.05), quota=8, cohort_usage=FEW
    )
    assert sent_away(snapshot, gang("x", gpus=4, priority=5)) == {"a", "c"}


def test_what_leaves_a_node_without_need_does_not_count_for_its_price() -> None:
    """The cheapest first, `a` and `b` would go with `c`, for 6; without `b` it is 4, so not 5."""
    nodes, rest = dear(MANY, gpus=4)
    running = [
        job("a", "n0", gpus=1, cost=1),
        job("b", "n0", gpus=1, cost=2),
        job("c", "n0", gpus=2, cost=3),
        job("d", "n1", gpus=4, cost=5),
    ]
    snapshot = cluster(*racks(count=1, gpus=4), *nodes, running=[*running, *rest], queues=ALONE)
    assert sent_away(snapshot, gang("x", gpus=3, priority=5)) == {"a", "c"}


def test_the_cheaper_node_is_found_though_another_has_the_cheapest_gang() -> None:
    """On n0 the first GPU costs next to nothing, the other three more than all of n1."""
    nodes, rest = dear(MANY, gpus=4)
    running = [
        job("bait", "n0", gpus=1, cost=1),
        job("hook", "n0", gpus=3, cost=60),
        job("p", "n1", gpus=2, cost=15),
        job("q", "n1", gpus=2, cost=15),
    ]
    snapshot = cluster(*racks(count=1, gpus=4), *nodes, running=[*running, *rest], queues=ALONE)
    asks = gang("x", per_pod=pod(4, cpu=1), priority=5)
    assert sent_away(snapshot, asks) == {"p", "q"}


def test_of_more_gangs_than_are_weighed_in_one_rack_the_cheapest_go() -> None:
    """Eight small ones of the first rack cost less than the only one of the second."""
    count = MAX_WEIGHED + 8
    nodes = [node(f"n{i}", "rack-0", gpus=8) for i in range(count // 8)]
    small = [job(f"s{i:02}", f"n{i // 8}", gpus=1, cost=1) for i in range(count)]
    item = job("one", "m", gpus=8, cost=20)
    snapshot = cluster(*nodes, node("m", "rack-1", gpus=8), running=[*small, item], queues=ALONE)
    asks = gang("x", gpus=8, priority=5, required_level="rack")
    assert sent_away(snapshot, asks) == {f"s{i:02}" for i in range(8)}


def test_victims_of_one_rack_are_remembered_while_another_one_turns_out_to_be_too_small() -> None:
    """Rack 1 looks cheaper, GPU by GPU; but there a stranger has the other half of each node."""
    running = [
        *(job(f"cheap{i}", f"a{i}", gpus=1, cost=100) for i in range(2)),
        *(job(f"dear{i}", f"a{i}", gpus=1, cost=900) for i in range(2)),
        *(job(f"half{i}", f"b{i}", gpus=1, cost=200) for i in range(2)),
    ]
    nodes = [
        *(node(f"a{i}", "rack-0") for i in range(2)),
        *(node(f"b{i}", "rack-1", used=pod(1)) for i in range(2)),
    ]
    asks = gang("x", gpus=2, priority=5, required_level="rack")
    assert sent_away(cluster(*nodes, running=running, queues=ALONE), asks) == {"cheap0", "dear0"}


def test_one_who_loses_nothing_is_sent_away_like_any_other() -> None:
    idle, busy = job("idle", "n0", gpus=2, cost=0), job("busy", "n1", gpus=2, cost=1)
    snapshot = cluster(*racks(count=1), running=[busy, idle], queues=ALONE)
    assert sent_away(snapshot, gang("x", gpus=2, priority=5)) == {"idle"}


def test_whom_the_law_protects_stays_though_it_would_be_cheaper() -> None:
    """b has borrowed 3 GPUs: once those on n0 are back, the next ones would be its own."""
    borrowers = [
        admitted(gang(f"b{i}", queue="b"), f"n{i // 3}", gpu_seconds_at_risk=1.0 + i // 3)
        for i in range(6)
    ]
    own = admitted(gang("low", gpus=3, queue="a"), "n2", gpu_seconds_at_risk=50.0)
    queues = (queue("org"), queue("a", 6, parent="org"), queue("b", 3, parent="org"))
    nodes = racks(count=1, nodes=3, gpus=3)
    snapshot = cluster(*nodes, running=[*borrowers, own], queues=queues)
    asks = gang("x", nodes=2, gpus=3, queue="a", priority=5)
    assert sent_away(snapshot, asks) == {"b0", "b1", "b2", "low"}


def test_gangs_that_only_together_free_their_nodes_are_found() -> None:
    """Each of three shares its two nodes with the others: a node costs 8, all three of them 12."""
    nodes, rest = dear(MANY, gpus=2)
    ring = [job(f"r{i}", f"n{i}", f"n{(i + 1) % 3}", gpus=1, cost=4) for i in range(3)]
    alone = [job(f"s{i}", f"n{i}", gpus=2, cost=5) for i in range(3, 6)]
    snapshot = cluster(
        *racks(count=1, nodes=6), *nodes, running=[*ring, *alone, *rest], queues=ALONE
    )
    assert sent_away(snapshot, gang("x", nodes=3, gpus=2, priority=5)) == {"r0", "r1", "r2"}


@pytest.mark.parametrize("rest", [FEW, MANY])
def test_a_gang_that_may_not_be_taken_does_not_keep_those_behind_it(rest: int) -> None:
    """By cost the second of b comes next; but b has borrowed only as much as the first had."""
    running = [
        admitted(gang("b0", gpus=2, queue="b"), "n0", gpu_seconds_at_risk=1.0),
        admitted(gang("b1", gpus=2, queue="b"), "n1", gpu_seconds_at_risk=2.0),
        admitted(gang("low", gpus=2, queue="a"), "n2", gpu_seconds_at_risk=50.0),
        *(
            admitted(gang(f"z{i:02}", queue="a"), f"n{i}", gpu_seconds_at_risk=10_000.0)
            for i in range(rest)
        ),
    ]
    nodes = racks(count=1, nodes=MANY, gpus=8)
    queues = (queue("org"), queue("a", 4 + rest, parent="org"), queue("b", 2, parent="org"))
    snapshot = cluster(*nodes, running=running, queues=queues)
    assert sent_away(snapshot, gang("x", gpus=4, queue="a", priority=5)) == {"b0", "low"}


def test_room_beyond_the_need_is_worth_nothing() -> None:
    """`big` would make room for four pods, for 2.5 each; one is to come, and 5 is enough."""
    nodes, rest = dear(MANY, gpus=2)
    running = [
        job("big", "n0", gpus=8, cost=10),
        job("p", "n1", gpus=1, cost=2.5),
        job("q", "n1", gpus=1, cost=2.5),
    ]
    full = (node("n0", "rack-0", gpus=8), node("n1", "rack-0"))
    snapshot = cluster(*full, *nodes, running=[*running, *rest], queues=ALONE)
    assert sent_away(snapshot, gang("x", gpus=2, priority=5)) == {"p", "q"}


@pytest.mark.parametrize("rest", [FEW, MANY])
def test_who_is_in_another_rack_goes_for_the_quota(rest: int) -> None:
    """The rack's own gang makes room there, but the queue needs as much again."""
    nodes, more = dear(rest, gpus=1)
    running = [job("near", "n0", gpus=2, cost=5), job("far", "n1", gpus=2, cost=7), *more]
    full = (node("n0", "rack-0", gpus=4), node("n1", "rack-1"))
    queues = (queue("research", 4 + rest),)
    snapshot = cluster(*full, *nodes, running=running, queues=queues)
    asks = gang("x", gpus=4, priority=5, required_level="rack")
    assert sent_away(snapshot, asks) == {"near", "far"}


def test_gains_that_are_kept_are_those_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, asked, stale = NodeCosts._gain, Counter[int](), Counter[int]()

    def checked(self: NodeCosts, units: Sequence[EvictionUnit]) -> int:
        gain = kept(self, units)
        asked[gain] += 1
        stale[gain] += gain != self._counted_gain(units)
        return gain

    monkeypatch.setattr(NodeCosts, "_gain", checked)
    for seed in range(40):
        chance = Random(seed)
        nodes = racks(count=2, nodes=4, gpus=4)
        free, running = Counter({node.name: 4 for node in nodes}), list[Admitted]()
        for number in range(30):
            gpus = chance.choice([1, 2, 4])
            places = [name for name, left in free.items() if left >= gpus]
            chosen = chance.sample(places, min(len(places), chance.randint(1, 3)))
            if chosen:
                free.subtract(dict.fromkeys(chosen, gpus))
                item = gang(f"r{number}", nodes=len(chosen), gpus=gpus, priority=-1)
                running.append(admitted(item, *chosen, gpu_seconds_at_risk=chance.random()))
        snapshot = cluster(*nodes, running=running, queues=ALONE)
        run(snapshot, gang("x", nodes=chance.randint(2, 6), gpus=2, priority=5))
    assert len(asked) > 2
    assert not stale.total()
