from __future__ import annotations

import math

import pytest

from drumline_contract import ExitCode
from drumline_trainer.optimization.gradient_clipping import StepTotals
from drumline_trainer.optimization.loss_scale import LossScale
from drumline_trainer.rank import exit_code_of
from drumline_trainer.recovery.tiered_checkpointer import PreemptedError
from drumline_trainer.train import NonFiniteLossError, refuse_non_finite

FP32 = LossScale()


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)]
)
@pytest.mark.parametrize("scale", [FP32, LossScale(value=1.0, growth_steps=10)])
def test_what_is_not_finite_ends_the_run_and_says_where(
    scale: LossScale, loss: float, norm: float
) -> None:
    totals = StepTotals(loss=loss, gradient_norm=norm, votes=0)
    with pytest.raises(NonFiniteLossError, match="step 7: the loss is") as raised:
        refuse_non_finite(totals, scale.after(finite=totals.finite), step=7)
    assert exit_code_of(raised.value) is ExitCode.APPLICATION


def test_an_overflow_does_not_while_a_smaller_scale_is_left() -> None:
    totals = StepTotals(loss=2.0, gradient_norm=math.inf, votes=0)
    scale = LossScale(value=2.0, growth_steps=10)
    refuse_non_finite(totals, scale.after(finite=totals.finite), step=7)


def test_a_finite_step_passes() -> None:
    refuse_non_finite(
        StepTotals(loss=2.0, gradient_norm=0.0, votes=0), FP32.after(finite=True), step=7
    )


def test_who_left_on_request_says_so() -> None:
    assert exit_code_of(PreemptedError("saved step 7")) is ExitCode.PREEMPTED
