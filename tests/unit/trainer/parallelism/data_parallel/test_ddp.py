"""One rank without a group: a plain model, whose weights are fp32 whatever it computes in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from drumline_contract.config import DataParallel, Precision
from drumline_contract.layout import Layout
from drumline_trainer.memory.offload_store import FileStore
from drumline_trainer.parallelism.data_parallel.apply import data_parallel
from drumline_trainer.parallelism.data_parallel.ddp import DdpModel
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.parallelism.data_parallel.weights import CutStages, weights_of
from drumline_trainer.sharding.world import World
from tests.unit.trainer.memory.resident import resident


def alone(stage: nn.Module, precision: Precision, *, backwards: int = 1) -> DataParallelModel:
    layout = Layout(data_parallel=DataParallel.DDP)
    world = World(layout=layout, rank=0, device=torch.device("cpu"))
    model = data_parallel(
        CutStages(stages=[stage]), world=world, precision=precision, backwards=backwards
    )
    for part in (*model.slices, *model.frozen):
        part.tensor.fill_(1.0)
    model.refresh_copies()
    return model


def meta_linear(*, bias: bool = False) -> nn.Linear:
    return nn.Linear(2, 1, bias=bias, device="meta")


def test_fp32_slices_are_the_parameters_themselves() -> None:
    stage = meta_linear()
    (weight,) = alone(stage, Precision.FP32).slices
    assert weight.tensor.data_ptr() == stage.weight.data_ptr()
    assert (weight.name, weight.shape, weight.copies) == ("weight", (1, 2), 1)


def test_a_low_precision_copy_follows_its_fp32_weight() -> None:
    stage = meta_linear()
    model = alone(stage, Precision.BF16)
    weight = model.slices[0].tensor
    for _ in range(3):
        weight.add_(2.0**-10)  # bf16 has 8 bits: lost in the copy, kept here
        model.refresh_copies()
    assert stage.weight.dtype is torch.bfloat16
    assert weight.tolist() == [[1 + 3 * 2.0**-10] * 2]
    assert stage.weight.tolist() == [[1.0] * 2]
    weight.add_(1)
    model.refresh_copies()
    assert stage.weight.tolist() == [[2.0] * 2]


def test_gradients_of_low_precision_are_added_up_in_fp32() -> None:
    stage = meta_linear()
    model = alone(stage, Precision.BF16, backwards=3)
    for value in (256.0, 1.0, 1.0):  # in bf16 256 + 1 is 256
        stage(torch.full((1, 2), value, dtype=torch.bfloat16)).sum().backward()
    assert model.gradients()[0].tolist() == [[258.0] * 2]
    model.zero()
    assert model.gradients()[0].tolist() == [[0.0] * 2]


def test_frozen_parameters_are_held_but_not_updated() -> None:
    stage = meta_linear(bias=True)
    stage.weight.requires_grad_(requires_grad=False)
    model = alone(stage, Precision.BF16)
    assert [part.name for part in model.slices] == ["bias"]
    assert [part.name for part in model.frozen] == ["weight"]
    assert model.frozen[0].tensor.data_ptr() == stage.weight.data_ptr()
    stage(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    assert [gradient.tolist() for gradient in model.gradients()] == [[1.0]]


def with_masters_in_a_file(stage: nn.Module, folder: Path) -> DdpModel:
    world = World(layout=Layout(), rank=0, device=torch.device("cpu"))

    def place(sizes: Sequence[int]) -> FileStore:
        return FileStore(folder, sizes=sizes)

    weights = weights_of(CutStages(stages=[stage], experts=()), world=world)
    return DdpModel(weights, group=None, backwards=1, open_store=place)


def test_masters_that_are_away_are_let_go_of_once_they_are_published(tmp_path: Path) -> None:
    stage = nn.Linear(256, 64, bias=False, dtype=torch.bfloat16)
    replicas = with_masters_in_a_file(stage, tmp_path)
    master = replicas.slices[0].tensor.fill_(2.0)
    assert resident(master) == master.nbytes
    replicas.refresh_copies()
    assert resident(master) == 0
    assert stage.weight.eq(2.0).all()
    assert master.eq(2.0).all()


def test_a_gradient_that_there_is_not_lies_where_the_others_do(tmp_path: Path) -> None:
    """Not where its master is: meta stands for the device."""
    stage = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16, device="meta")
    replicas = with_masters_in_a_file(stage, tmp_path)
    assert replicas.slices[0].tensor.device.type == "cpu"
    (gradient,) = replicas.gradients()
    assert (gradient.device.type, gradient.dtype) == ("meta", torch.float32)
