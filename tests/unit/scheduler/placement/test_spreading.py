"""Balanced gangs: the fewest domains of the level, and as even as these have room."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from drumline_scheduler import Node, Role, Slice
from tests.property.invariants import violations
from tests.unit.scheduler.builders import cluster, gang, node, pod, run

LEVELS = ("block", "rack", "host")


def shares(*sizes: int, nodes: int, level: str = "rack", **wanted: Any) -> list[int]:
    """Main pods by rack, of racks with so many one-GPU nodes, two in each block."""
    results: list[Node] = []
    for rack, size in enumerate(sizes):
        for i in range(size):
            name = f"n{rack}-{i}"
            results.append(node(name, f"b{rack // 2}", f"r{rack}", name, gpus=1))
    snapshot = cluster(*results, levels=LEVELS)
    gang_a = gang("a", nodes=nodes, balanced_level=level, **wanted)
    decisions = run(snapshot, gang_a)
    assert violations(snapshot=snapshot, pending=[gang_a], decisions=decisions) == ()
    main = decisions.placed[0].assignment[gang_a.extras :]
    count = Counter(int(name[1]) for name in main)
    return [count[rack] for rack in range(len(sizes))]


@pytest.mark.parametrize(
    ("sizes", "pods", "expected"),
    [
        ((6, 6), 8, [4, 4]),
        ((6, 6), 6, [6, 0]),
        ((6, 6), 7, [4, 3]),
        ((6, 3), 8, [5, 3]),
        ((4, 4, 6, 6), 8, [4, 4, 0, 0]),
        ((2, 2, 2, 5), 7, [2, 0, 0, 5]),
        ((6, 6, 2), 13, [6, 5, 2]),
    ],
)
def test_the_smallest_share_is_as_large_as_it_can_be(
    sizes: tuple[int, ...], pods: int, expected: list[int]
) -> None:
    assert shares(*sizes, nodes=pods) == expected


def test_without_the_wish_the_first_domain_is_filled() -> None:
    assert shares(6, 6, nodes=8, level="block") == [6, 2]


def test_whole_slices_are_shared_out() -> None:
    pairs = (Slice(level="rack", pods=2),)
    assert shares(6, 6, nodes=8, slices=pairs) == [4, 4]
    assert shares(6, 6, nodes=10, slices=pairs) == [6, 4]


def test_slices_wider_than_the_level_are_spread_inside() -> None:
    halves = (Slice(level="block", pods=4),)
    assert shares(3, 3, 3, 3, nodes=8, slices=halves) == [2, 2, 2, 2]


def test_slices_wider_than_the_level_are_filled_one_by_one_before_they_are_spread() -> None:
    """The tightest two racks are in two blocks; the first block holds both halves."""
    halves = (Slice(level="block", pods=2),)
    assert shares(2, 3, 2, nodes=4, slices=halves) == [2, 2, 0]


def test_roles_leave_the_main_pods_even() -> None:
    store = Role(name="store", pods=2, per_pod=pod(1))
    assert shares(4, 4, 2, nodes=8, roles=(store,)) == [4, 4, 0]


def test_a_level_that_nobody_knows_spreads_nothing() -> None:
    nodes = [node(f"n{i}", gpus=1) for i in range(4)]
    gang_a = gang("a", nodes=3, balanced_level="rack")
    assert run(cluster(*nodes), gang_a).placed[0].assignment == ("n0", "n1", "n2")
