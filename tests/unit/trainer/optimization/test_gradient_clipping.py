"""The global norm of gradients, on one rank."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from drumline_contract.layout import Layout
from drumline_trainer.optimization.gradient_clipping import StepTotals, clip_gradients
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

ALONE = World(layout=Layout(), rank=0, device=torch.device("cpu"))


def held(size: int, *, copies: int = 1) -> TensorSlice:
    box = Box(offsets=(0,), shape=(size,))
    return TensorSlice(name="w", shape=(size,), box=box, tensor=torch.zeros(size), copies=copies)


def clipped(
    *gradients: list[float], loss: float = 2.5, copies: int = 1, **options: float | Tensor | None
) -> tuple[StepTotals, list]:
    tensors = [torch.tensor(gradient) for gradient in gradients]
    totals = clip_gradients(
        [held(len(gradient), copies=copies) for gradient in gradients],
        tensors,
        loss=torch.tensor(loss),
        world=ALONE,
        **{"max_norm": 1.0, **options},
    )
    return totals, [tensor.tolist() for tensor in tensors]


def test_gradients_are_scaled_to_the_largest_norm() -> None:
    totals, gradients = clipped([3.0], [0.0, 4.0], [])
    assert totals == StepTotals(loss=2.5, gradient_norm=5.0, votes=0)
    assert gradients == [pytest.approx([0.6]), pytest.approx([0.0, 0.8]), []]


def test_small_gradients_stay_as_they_are() -> None:
    totals, gradients = clipped([3.0], [4.0], max_norm=6.0)
    assert totals.gradient_norm == 5.0
    assert gradients == [[3.0], [4.0]]


@pytest.mark.parametrize("scale", [1, 1024])
def test_without_a_largest_norm_only_the_scale_of_the_loss_is_taken_out(scale: int) -> None:
    totals, gradients = clipped(
        [3e9 * scale], [4e9 * scale], loss=2.5 * scale, max_norm=None, scale=scale
    )
    assert totals.gradient_norm == 5e9
    assert gradients == [[3e9], [4e9]]


def test_what_other_ranks_hold_too_is_counted_by_its_share() -> None:
    totals, _ = clipped([3.0], [4.0], copies=4)
    assert totals.gradient_norm == 2.5


def test_the_scale_of_the_loss_is_taken_out_before_clipping() -> None:
    totals, gradients = clipped(
        [3.0 * 1024], [4.0 * 1024], loss=2.5 * 1024, max_norm=6.0, scale=1024
    )
    assert totals.gradient_norm == 5.0
    assert totals.loss == 2.5
    assert gradients == [[3.0], [4.0]]


def test_what_is_counted_beside_the_loss_is_summed_and_rid_of_the_scale() -> None:
    counted = torch.tensor([2.0, 6.0]) * 1024
    totals, _ = clipped([3.0 * 1024], loss=2.5 * 1024, scale=1024, counted=counted)
    assert totals == StepTotals(loss=2.5, gradient_norm=3.0, votes=0, counted=(2.0, 6.0))


def test_what_is_not_finite_is_counted() -> None:
    totals, _ = clipped([math.inf], [1.0], [math.nan, 0.0], vote=True)
    assert (totals.non_finite, totals.votes) == (2, 1)
    assert not math.isfinite(totals.gradient_norm)
    assert not totals.finite


def test_a_rank_without_gradients_takes_part() -> None:
    totals, _ = clipped()
    assert totals == StepTotals(loss=2.5, gradient_norm=0.0, votes=0)
