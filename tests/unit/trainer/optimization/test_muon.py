from __future__ import annotations

import math
from dataclasses import replace

import torch

from drumline_contract.config import ModelConfig, OptimizerConfig, OptimizerKind
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.muon import is_hidden_matrix, orthogonal
from drumline_trainer.sharding.slices import TensorSlice, slices_of
from drumline_trainer.sharding.world import World

ALONE = World(layout=Layout(), rank=0, device=torch.device("cpu"))
CONFIG = OptimizerConfig(kind=OptimizerKind.MUON, momentum=0.9, weight_decay=0.5)


def weights() -> list[TensorSlice]:
    config = ModelConfig(
        layers=1, hidden_size=8, ffn_size=12, experts=4, experts_per_token=2, tied_embeddings=False
    )
    slices = slices_of(build_on_meta(config).to_empty(device="cpu"))
    initialize_slices(slices, config=config, seed=0)
    return slices


def test_singular_values_become_about_1() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((8, 8), (24, 8), (3, 8, 24)):
        matrices = torch.randn(shape, generator=generator)
        values = torch.linalg.svdvals(orthogonal(matrices))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_bf16_does_as_well_as_its_authors_want() -> None:
    matrices = torch.randn(3, 64, 192, generator=torch.Generator().manual_seed(0))
    exact, low = orthogonal(matrices), orthogonal(matrices, dtype=torch.bfloat16)
    assert low.dtype is torch.float32
    assert torch.equal(low, low.bfloat16())
    values = torch.linalg.svdvals(low)
    assert values.min() > 0.5
    assert values.max() < 1.3
    assert 0 < (low - exact).norm() / exact.norm() < 0.05


def test_a_run_chooses_the_type_of_the_iteration() -> None:
    steps = {low: weights() for low in (False, True)}
    before = [part.tensor.clone() for part in weights()]
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(part.tensor.shape, generator=generator) for part in weights()]
    for low, slices in steps.items():
        optimizer = build_optimizer(slices, replace(CONFIG, bf16_iteration=low), ALONE)
        optimizer.update(gradients, rate=0.01)
    for part, low, old in zip(*steps.values(), before, strict=True):
        moved, apart = (low.tensor - old).norm(), (low.tensor - part.tensor).norm()
        if is_hidden_matrix(part.name, part.shape):
            assert 0 < apart < 0.2 * moved, part.name
        else:
            assert apart == 0, part.name


def test_singular_vectors_stay() -> None:
    matrix = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ orthogonal(matrix) @ right.T
    assert torch.allclose(turned, turned.diag().diag(), atol=1e-5)


def test_nothing_becomes_nothing() -> None:
    assert orthogonal(torch.zeros(2, 4, 4)).count_nonzero() == 0


def test_it_is_for_matrices_of_layers_and_each_experts() -> None:
    chosen = {weight.name for weight in weights() if is_hidden_matrix(weight.name, weight.shape)}
    blocks = {"attention.query", "attention.key", "attention.value", "attention.output"}
    blocks = {f"{name}.weight" for name in blocks | {"feed_forward.router"}}
    blocks |= {f"feed_forward.experts.{name}" for name in ("gate", "up", "down")}
    assert chosen == {f"layers.0.{name}" for name in blocks}


def test_the_first_step_of_a_matrix_is_the_formulas() -> None:
    slices = weights()
    before = [each_slice.tensor.clone() for each_slice in slices]
    optimizer = build_optimizer(slices, CONFIG, ALONE)
    optimizer.update([weight.cos() for weight in before], rate=0.01)
    for tensor_slice, weight in zip(slices, before, strict=True):
        if is_hidden_matrix(tensor_slice.name, tensor_slice.shape):
            expected = weight * (1 - 0.01 * 0.5)
            expected -= (
                0.01 * 0.2 * math.sqrt(max(tensor_slice.shape[-2:])) * orthogonal(weight.cos())
            )
            assert torch.allclose(tensor_slice.tensor, expected, atol=1e-6)
        assert not torch.equal(tensor_slice.tensor, weight)


def test_its_slices_and_the_count_of_steps_are_the_whole_state() -> None:
    sides = [(slices := weights(), build_optimizer(slices, CONFIG, ALONE)) for _ in range(2)]
    (left, ours), (right, theirs) = sides
    for _ in range(3):
        ours.update([item.tensor.cos() for item in left], rate=0.01)
    for target, source in zip(theirs.slices(), ours.slices(), strict=True):
        assert target.name == source.name
        target.tensor.copy_(source.tensor)
    theirs.set_finished_steps(3)
    for slices, optimizer in sides:
        optimizer.update([each_slice.tensor.cos() for each_slice in slices], rate=0.01)
    for mine, other in zip(left, right, strict=True):
        assert torch.equal(mine.tensor, other.tensor)
