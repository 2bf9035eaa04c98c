"""What the part `loss` plays for a seed, and how it judges a cycle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from drumline.controller.scheduler import loop
from drumline_scheduler import CycleInput, Decisions, Resources
from tests.integration.operator.loss.faults import Distortion
from tests.integration.operator.loss.matrix import SEEDS, all_faults, sampled_faults
from tests.integration.operator.loss.verdicts import judged_cycles
from tests.unit.scheduler.builders import BEST_EFFORT, admitted, cluster, gang, node

IN_A_ROW = 14
CORNER = "research"
"""The builders' queue."""


@pytest.mark.parametrize("first", [0, 739_942])
def test_a_seed_plays_every_distortion_and_fourteen_seeds_each_on_every_kind(
    first: int,
) -> None:
    samples = [sampled_faults(seed) for seed in range(first, first + IN_A_ROW)]
    for sample in samples:
        assert {fault.distortion for fault in sample} == set(Distortion)
        assert max(Counter(fault.plural for fault in sample).values()) <= len(sample) / 3
    everything = {(fault.plural, fault.distortion) for fault in all_faults(seed=first)}
    together = {(fault.plural, fault.distortion) for sample in samples for fault in sample}
    assert together == everything
    assert len(all_faults(seed=first)) == SEEDS * len(everything)


def forgetful(cycle: CycleInput, **more: Any) -> Decisions:
    """Takes every node for free."""
    nodes = tuple(replace(each, used=Resources()) for each in cycle.snapshot.nodes)
    empty = replace(cycle.snapshot, nodes=nodes, admitted=())
    return right(replace(cycle, snapshot=empty), **more)


right = loop.decide


@pytest.mark.parametrize(("decide", "wrong"), [(right, False), (forgetful, True)])
def test_a_cycle_that_gives_a_node_away_twice_is_noticed(
    monkeypatch: pytest.MonkeyPatch, decide: Any, *, wrong: bool
) -> None:
    monkeypatch.setattr(loop, "decide", decide)
    full = cluster(node("n0"), running=[admitted(gang("runs", gpus=2), "n0")])
    with judged_cycles() as verdicts:
        verdicts.begin(CORNER)
        pending = (gang("waits"),)
        loop.decide(CycleInput(snapshot=full, pending=pending, policy=BEST_EFFORT, now=9.0))
        assert bool(verdicts.of(CORNER)) == wrong
        verdicts.begin(CORNER)
        assert verdicts.of(CORNER) == []
    assert loop.decide is decide
