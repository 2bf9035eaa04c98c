from __future__ import annotations

import torch

from drumline_contract.config import OptimizerConfig, OptimizerKind
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

ALONE = World(layout=Layout(), rank=0, device=torch.device("cpu"))
CONFIG = OptimizerConfig(kind=OptimizerKind.SGD, momentum=0.5, weight_decay=0.5)


def weight(name: str, *shape: int) -> TensorSlice:
    box = Box(offsets=(0,) * len(shape), shape=shape)
    return TensorSlice(name=name, shape=shape, box=box, tensor=torch.ones(shape))


def test_two_steps_are_the_formulas_and_matrices_alone_decay() -> None:
    slices = [weight("norm.weight", 1), weight("output.weight", 1, 1)]
    optimizer = build_optimizer(slices, CONFIG, ALONE)
    for _ in range(2):
        optimizer.update(
            [torch.full_like(each_slice.tensor, 0.25) for each_slice in slices], rate=0.5
        )
    # 1 - 0.5 * 0.25 = 0.875; momentum 0.375 then; with decay 0.75, 0.375 and 1 - 0.375 first
    assert slices[0].tensor.item() == 0.875 - 0.5 * 0.375
    assert slices[1].tensor.item() == 0.625 - 0.5 * (0.5 * 0.75 + 0.25 + 0.5 * 0.625)


def test_weights_and_momenta_are_the_whole_state() -> None:
    names = [
        each_slice.name for each_slice in build_optimizer([weight("w", 2)], CONFIG, ALONE).slices()
    ]
    assert names == ["model.w", "optimizer.momentum.w"]
