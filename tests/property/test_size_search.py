"""Sizes of elastic gangs: bisected as if they were tried one by one, and few tries for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_scheduler import CycleInput, admission, decide, growth
from drumline_scheduler.preemption import resizing
from drumline_scheduler.sizes import fitting, sampled
from drumline_scheduler.work import Work
from tests.property.scheduling_worlds import DRAWN, Feature, world
from tests.unit.scheduler.builders import BEST_EFFORT, cluster, gang, racks

_ALWAYS = frozenset({Feature.ELASTIC})
_SOMETIMES = sorted(set(DRAWN) - {Feature.ELASTIC, Feature.ROLES, Feature.MINIMUM})


def linear(sizes: Sequence[int], *, fits: Callable[[int], bool]) -> Sequence[int]:
    """The oracle: from the largest size down."""
    for count in range(len(sizes), 0, -1):
        if fits(sizes[count - 1]):
            return sizes[:count]
    return ()


@given(st.sets(st.integers(1, 99), max_size=9), st.integers(0, 100))
def test_bisected_sizes_are_those_of_a_linear_search(sizes: set[int], room: int) -> None:
    ascending = sorted(sizes)
    assert list(fitting(ascending, fits=lambda size: size <= room)) == list(
        linear(ascending, fits=lambda size: size <= room)
    )


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("part", range(4))
def test_decisions_are_those_of_a_linear_search(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slices, anchors and reservations, too."""
    random = Random(part)
    worlds = [
        world(seed, _ALWAYS | {feature for feature in _SOMETIMES if random.random() < 0.3})
        for seed in range(100 * part, 100 * part + 60)
    ]
    bisected = [item.decide() for item in worlds]
    for module in (admission, growth, resizing):
        monkeypatch.setattr(module, "fitting", linear)
    assert [item.decide() for item in worlds] == bisected
    assert any(decisions.placed for decisions in bisected)


@pytest.mark.parametrize("nodes", [100, 10_000])
def test_few_sizes_are_tried_however_many_there_are(nodes: int) -> None:
    snapshot = cluster(*racks(count=4, nodes=4))
    sizes = tuple(range(1, nodes + 1))
    pending = tuple(gang(f"e{i}", nodes=nodes, sizes=sizes, at=i) for i in range(3))
    cycle = CycleInput(snapshot=snapshot, pending=pending, policy=BEST_EFFORT, now=0.0)
    work = Work()
    decisions = decide(cycle, work=work)
    assert [len(placed.assignment) for placed in decisions.placed] == [32]
    assert work.steps < 200


def test_two_sizes_are_tried_where_none_fits() -> None:
    tried: list[int] = []
    assert fitting(range(1, 10_001), fits=lambda size: bool(tried.append(size))) == range(1, 1)
    assert tried == [10_000, 1]


def test_few_of_many_sizes_keep_both_ends() -> None:
    sizes = sampled(range(1, 1001))
    assert (sizes[0], sizes[-1], len(sizes)) == (1, 1000, 64)
    assert list(sizes) == sorted(set(sizes))
    assert sampled((1, 2, 3)) == (1, 2, 3)
