from __future__ import annotations

import math

import pytest

from drumline_trainer.contract import ExitCode
from drumline_trainer.optimization.gradients import Totals
from drumline_trainer.rank import exit_code_of
from drumline_trainer.recovery.savepoints import PreemptedError
from drumline_trainer.train import NonFiniteLossError, refuse_non_finite


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)]
)
def test_what_is_not_finite_ends_the_run_and_says_where(loss: float, norm: float) -> None:
    with pytest.raises(NonFiniteLossError, match="step 7: the loss is") as raised:
        refuse_non_finite(Totals(loss=loss, gradient_norm=norm, votes=0), step=7)
    assert exit_code_of(raised.value) is ExitCode.APPLICATION


def test_a_finite_step_passes() -> None:
    refuse_non_finite(Totals(loss=2.0, gradient_norm=0.0, votes=0), step=7)


def test_who_left_on_request_says_so() -> None:
    assert exit_code_of(PreemptedError("saved step 7")) is ExitCode.PREEMPTED
