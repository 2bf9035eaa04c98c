"""The scale of fp16's losses from step to step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_contract.config import OptimizerConfig, Precision, TrainerConfig
from drumline_trainer.optimization.loss_scale import LossScale

FP16 = TrainerConfig(
    precision=Precision.FP16,
    optimizer=OptimizerConfig(loss_scale=1024.0, loss_scale_growth_steps=3),
)


def after(*steps: bool) -> LossScale:
    scale = LossScale.of(FP16, {})
    for finite in steps:
        scale = scale.after(finite=finite)
    return scale


def test_an_overflow_halves_it_and_is_counted() -> None:
    assert after(True, False) == LossScale(value=512.0, growth_steps=3, skipped=1)
    assert after(False, False).value == 256.0
    assert after(False, False).skipped == 2


def test_it_doubles_after_steady_steps_only() -> None:
    assert after(True, True).value == 1024.0
    assert after(True, True, True) == LossScale(value=2048.0, growth_steps=3)
    assert after(True, True, False, True, True).value == 512.0
    assert after(True, True, False, True, True, True).value == 1024.0


def test_it_goes_on_from_what_was_saved() -> None:
    scale = after(False, True, True)
    assert LossScale.of(FP16, {"loss_scale": scale.state()}) == scale


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_other_precisions_have_a_scale_of_1_that_an_overflow_uses_up(precision: Precision) -> None:
    scale = LossScale.of(replace(FP16, precision=precision), {})
    for _ in range(5):
        scale = scale.after(finite=True)
    assert scale.value == 1.0
    assert scale.after(finite=False).value < 1


def test_another_precision_keeps_the_count_of_skipped_steps_and_nothing_else() -> None:
    saved = {"loss_scale": after(False, True).state()}
    fp32 = LossScale.of(replace(FP16, precision=Precision.FP32), saved)
    assert fp32 == LossScale(skipped=1)
    assert LossScale.of(FP16, {"loss_scale": fp32.state()}) == replace(after(), skipped=1)


@pytest.mark.parametrize("saved", [{"value": "1"}, {"value": 1.0, "steady": None, "skipped": 0}, 7])
def test_what_is_no_scale_is_refused(saved: object) -> None:
    with pytest.raises(ValueError, match="is not a loss scale"):
        LossScale.of(FP16, {"loss_scale": saved})


def test_so_many_steps_may_be_left_out_where_no_scale_is_smaller() -> None:
    config = TrainerConfig(optimizer=OptimizerConfig(max_skipped_steps=2))
    scale = LossScale.of(config, {})
    for _ in range(2):
        scale = scale.after(finite=False).after(finite=True)
        assert scale.value == 1.0
    assert scale.skipped == 2
    resumed = LossScale.of(config, {"loss_scale": scale.state()})
    assert resumed == scale
    assert resumed.after(finite=False).value < 1
