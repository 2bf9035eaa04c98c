"""The average of the weights, beside any optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from drumline_contract.config import ConfigError, OptimizerConfig, OptimizerKind, TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.optimization.average import WeightAverage
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

ALONE = World(layout=Layout(), rank=0, device=torch.device("cpu"))


def slices() -> list[TensorSlice]:
    """A matrix, and rows 4 to 8 of a table."""
    random = torch.Generator().manual_seed(0)
    boxes = {
        "layers.0.attention.query.weight": ((4, 6), Box(offsets=(0, 0), shape=(4, 6))),
        "embedding.weight": ((12, 6), Box(offsets=(4, 0), shape=(4, 6))),
    }
    return [
        TensorSlice(
            name=name, shape=shape, box=box, tensor=torch.randn(box.shape, generator=random)
        )
        for name, (shape, box) in boxes.items()
    ]


def gradients(held: Sequence[TensorSlice], step: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(step)
    return [torch.randn(part.box.shape, generator=random) for part in held]


def averages(optimizer: WeightAverage) -> dict[str, Tensor]:
    return {
        part.name.removeprefix("average."): part.tensor
        for part in optimizer.slices()
        if part.name.startswith("average.")
    }


def built(held: Sequence[TensorSlice], *, decay: float = 0.3) -> WeightAverage:
    made = build_optimizer(held, OptimizerConfig(average_decay=decay), ALONE)
    assert isinstance(made, WeightAverage)
    return made


def test_it_is_the_recurrence_over_the_updates() -> None:
    held = slices()
    optimizer = built(held)
    expected: dict[str, Tensor] = {}
    for step in range(8):
        optimizer.update(gradients(held, step), rate=0.1)
        kept = min(0.3, step / (step + 9))  # 0, 1/10, 2/11, 3/12, 0.3
        for part in held:
            before = expected.get(part.name, torch.zeros_like(part.tensor))
            expected[part.name] = kept * before + (1 - kept) * part.tensor
        if step == 0:
            assert all(torch.equal(averages(optimizer)[w.name], w.tensor) for w in held)
    for name, average in averages(optimizer).items():
        torch.testing.assert_close(average, expected[name])


def test_it_goes_on_from_what_was_saved() -> None:
    whole, first = slices(), slices()
    through, before = built(whole), built(first)
    for step in range(5):
        through.update(gradients(whole, step), rate=0.1)
        if step < 2:
            before.update(gradients(first, step), rate=0.1)
    resumed = slices()
    after = built(resumed)
    for there, here in zip(before.slices(), after.slices(), strict=True):
        assert (there.name, there.box) == (here.name, here.box)
        here.tensor.copy_(there.tensor)
    after.set_finished_steps(2)
    for step in range(2, 5):
        after.update(gradients(resumed, step), rate=0.1)
    assert [part.name for part in after.slices()] == [part.name for part in through.slices()]
    for here, there in zip(after.slices(), through.slices(), strict=True):
        assert torch.equal(here.tensor, there.tensor), here.name


def test_the_weights_are_those_without_it() -> None:
    averaged, alone = slices(), slices()
    optimizer, plain = built(averaged), build_optimizer(alone, OptimizerConfig(), ALONE)
    for step in range(3):
        optimizer.update(gradients(averaged, step), rate=0.1)
        plain.update(gradients(alone, step), rate=0.1)
    pairs = zip(averaged, alone, strict=True)
    assert all(torch.equal(left.tensor, right.tensor) for left, right in pairs)


def test_in_the_weights_place_it_leaves_no_trace() -> None:
    held = slices()
    optimizer = built(held)
    before = [part.tensor.clone() for part in held]
    with optimizer.as_weights():  # there is none yet
        pairs = zip(held, before, strict=True)
        assert all(torch.equal(part.tensor, weight) for part, weight in pairs)
    for step in range(3):
        optimizer.update(gradients(held, step), rate=0.1)
    state = [part.tensor.clone() for part in optimizer.slices()]
    average = {name: tensor.clone() for name, tensor in averages(optimizer).items()}
    with optimizer.as_weights():
        assert all(torch.equal(part.tensor, average[part.name]) for part in held)
    pairs = zip(optimizer.slices(), state, strict=True)
    assert all(torch.equal(part.tensor, was) for part, was in pairs)


@pytest.mark.parametrize("kind", OptimizerKind)
def test_every_rule_has_one_where_asked(kind: OptimizerKind) -> None:
    def names(decay: float) -> set[str]:
        config = OptimizerConfig(kind=kind, average_decay=decay)
        return {part.name for part in build_optimizer(slices(), config, ALONE).slices()}

    assert names(0.9) - names(0.0) == {f"average.{part.name}" for part in slices()}


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"optimizer": {"average_decay": 1.0}}, "must be at least 0 and below 1, not 1.0"),
        ({"evaluation": {"average": True}}, "none is kept; set optimizer.average_decay"),
        (
            {
                "optimizer": {"average_decay": 0.9},
                "evaluation": {"average": True},
                "memory": {"offload_optimizer": "cpu"},
            },
            "not with memory.offload_optimizer or offload_parameters",
        ),
        (
            {
                "optimizer": {"average_decay": 0.9},
                "parallelism": {"data_parallel": "ddp", "local_sgd": {"every_steps": 10}},
                "checkpoint": {"every_steps": 10},
            },
            "optimizer.average_decay: copies that train alone",
        ),
    ],
)
def test_what_has_no_average_to_keep_or_to_measure_is_refused(
    raw: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainerConfig.from_dict(raw)
    assert sentence in str(refused.value)
