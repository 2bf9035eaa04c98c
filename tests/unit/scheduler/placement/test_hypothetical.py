"""Counting the room that others would leave says what trying it on the view says."""

from __future__ import annotations

from random import Random

import pytest

from drumline_scheduler import Policy
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.placement.hypothetical import HypotheticalCapacity
from drumline_scheduler.placement.search import Search
from drumline_scheduler.undo import Undo
from tests.unit.scheduler.builders import admitted, cluster, gang, node

SEEDS = range(40)


def refused(random: Random) -> Search:
    """A search that finds no room; equal ones for equal numbers."""
    search = searched(random)
    while search.has_room():
        search = searched(random)
    return search


def searched(random: Random) -> Search:
    """Two racks of three nodes of 4 GPUs (one is closed, one of no rack), held by six gangs."""
    nodes = [node(f"n{i}", f"r{i // 3}", gpus=4) for i in range(6)]
    nodes += [node("shut", "r0", gpus=4, unschedulable=True), node("odd", "", gpus=4)]
    running = [
        admitted(gang(f"g{i}", nodes=2, gpus=random.randint(1, 2)), *_two(random)) for i in range(6)
    ]
    snapshot = cluster(*nodes, levels=("rack",), running=running)
    level = random.choice((None, "rack"))
    wanted = gang(
        "new", nodes=random.randint(1, 4), gpus=random.randint(1, 4), required_level=level
    )
    cache = CycleCache()
    cache.pending(snapshot=snapshot, pending=[wanted])
    cluster_view = cache.cluster_view(snapshot=snapshot, policy=Policy())
    search = cluster_view.search(gang=wanted, pool="h100", pods=wanted.nodes)
    assert isinstance(search, Search)
    return search


def _two(random: Random) -> tuple[str, str]:
    names = random.sample([*(f"n{i}" for i in range(6)), "shut", "odd"], k=2)
    return names[0], names[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_goes_and_comes_back_in_whatever_order(seed: int) -> None:
    counted, tried = (refused(Random(seed)) for _ in range(2))
    random, imagined, gone = Random(seed), HypotheticalCapacity(counted), dict[str, list[Undo]]()
    for _ in range(20):
        uid = random.choice([*counted.view.allocations])
        if uid in gone:
            for undo in gone.pop(uid):
                undo()
        else:
            gone[uid] = [
                imagined.release(counted.view.allocations[uid]),
                tried.view.release(tried.view.allocations[uid]),
            ]
        assert imagined.has_room() == tried.has_room()
        assert [i for i in tried.ids if imagined.holds(i)] == tried.roomy(tried.ids)
