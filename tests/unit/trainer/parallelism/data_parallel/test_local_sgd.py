"""The outer step against NumPy, and what a round leaves behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drumline_contract.config import LocalSgdConfig, OptimizerConfig, OptimizerKind
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.parallelism.data_parallel.local_sgd import LocalSgd, outer_step
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

RATE, OUTER, MOMENTUM = 0.1, 0.7, 0.9


def alone(weight: torch.Tensor, *, every: int, steps: int) -> LocalSgd:
    """One copy of a model of one weight, plain SGD inside."""
    shape = tuple(weight.shape)
    slices = [
        TensorSlice(name="norm", shape=shape, box=Box(offsets=(0,), shape=shape), tensor=weight)
    ]
    world = World(layout=Layout(), rank=0, device=torch.device("cpu"))
    rule = OptimizerConfig(kind=OptimizerKind.SGD, momentum=0.0, weight_decay=0.0)
    config = LocalSgdConfig(every_steps=every, outer_learning_rate=OUTER, outer_momentum=MOMENTUM)
    inner = build_optimizer(slices, rule, world)
    return LocalSgd(inner, slices, config, copies=None, steps=steps)


def test_the_outer_step_is_nesterovs() -> None:
    generator = np.random.default_rng(0)
    common, velocity = generator.normal(size=5), np.zeros(5)
    ours, remembered = torch.tensor(common), torch.zeros(5, dtype=torch.float64)
    for _ in range(4):
        moved = generator.normal(size=5)
        velocity = MOMENTUM * velocity + moved
        common = common - OUTER * (moved + MOMENTUM * velocity)
        outer_step(ours, torch.tensor(moved), remembered, rate=OUTER, momentum=MOMENTUM)
        np.testing.assert_allclose(ours.numpy(), common, rtol=1e-12)
        np.testing.assert_allclose(remembered.numpy(), velocity, rtol=1e-12)


def test_rounds_end_every_so_many_steps_and_with_the_run() -> None:
    weight = torch.ones(3)
    copy = alone(weight, every=4, steps=6)
    copy.set_finished_steps(0)
    common, velocity, inside = 1.0, 0.0, 1.0
    for step in range(1, 7):
        copy.update([torch.full((3,), float(step))], rate=RATE)
        inside -= RATE * step
        if step in (4, 6):
            moved = common - inside
            velocity = MOMENTUM * velocity + moved
            common = inside = common - OUTER * (moved + MOMENTUM * velocity)
        assert weight.tolist() == pytest.approx([inside] * 3, rel=1e-5)


def test_what_was_restored_is_what_the_copies_have_in_common() -> None:
    weight = torch.ones(3)
    copy = alone(weight, every=2, steps=8)
    for each_slice in copy.slices():
        each_slice.tensor.fill_(2.0)
    copy.set_finished_steps(4)
    for _ in range(2):
        copy.update([torch.ones(3)], rate=RATE)
    moved = 2 * RATE
    velocity = MOMENTUM * 2.0 + moved
    # the momentum inside was restored as well, and has no effect with a factor of 0
    assert weight.tolist() == pytest.approx([2 - OUTER * (moved + MOMENTUM * velocity)] * 3)


def test_the_state_inside_is_each_copys_own_and_the_rest_is_there_once() -> None:
    names = [each_slice.name for each_slice in alone(torch.ones(3), every=2, steps=8).slices()]
    assert names == ["model.norm", "copy-0.optimizer.momentum.norm", "outer.momentum.norm"]
