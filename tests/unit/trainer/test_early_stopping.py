"""When a run ends before its last step."""

from __future__ import annotations

import math

import pytest

from drumline_contract.config import ConfigError, EvaluationConfig, TrainerConfig
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.retention import outdated
from drumline_trainer.early_stopping import EarlyStopping
from tests.texts import missing

CONFIG = TrainerConfig(evaluation=EvaluationConfig(patience=2, least_gain=0.1))


def after(losses: list[float | None], config: TrainerConfig = CONFIG) -> EarlyStopping:
    stopping = EarlyStopping.of(config, {})
    for step, loss in enumerate(losses):
        stopping.saves_after(step, loss)
    return stopping


@pytest.mark.parametrize(
    ("losses", "best", "is_over"),
    [
        ([2.0, 1.5], 1, False),
        ([2.0, 1.5, 1.45], 1, False),
        ([2.0, 1.5, 1.45, 1.41], 1, True),  # lower, and by too little
        ([2.0, 1.5, None, 1.45, 1.3], 4, False),
        ([2.0, math.nan, math.nan], 0, True),
        ([2.0, 2.1, 2.2], 0, True),
    ],
)
def test_it_ends_after_so_many_measurements_without_a_lower_loss(
    losses: list[float | None], best: int, is_over: bool
) -> None:
    stopping = after(losses)
    assert (stopping.step, stopping.is_over) == (best, is_over)
    again = EarlyStopping.of(CONFIG, stopping.state())
    assert again == stopping


def test_the_best_and_the_last_state_are_saved() -> None:
    stopping = EarlyStopping.of(CONFIG, {})
    asked = [stopping.saves_after(step, loss) for step, loss in enumerate([2.0, 1.0, 1.0, 1.0])]
    assert asked == [False, True, False, True]
    lines: list[str] = []
    stopping.report(print_line=lines.append)
    assert not missing(lines[0], "step 3", "2", "1.0000", "step 1")


def test_without_patience_nothing_is_kept_or_ended() -> None:
    stopping = after([1.0, 2.0, 3.0, 4.0], TrainerConfig(evaluation=EvaluationConfig()))
    assert not stopping.is_over
    assert stopping.state() == {}
    with pytest.raises(ConfigError, match="least_gain"):
        EvaluationConfig(least_gain=0.1)


def test_what_was_not_saved_by_this_program_is_refused() -> None:
    with pytest.raises(CorruptCheckpointError, match="is not a held-out loss"):
        EarlyStopping.of(CONFIG, {"best": {"loss": "low"}})


def test_retention_spares_the_best_step() -> None:
    steps = [1, 2, 3, 4]
    assert outdated(steps, keep=2, verified=steps) == [1, 2]
    assert outdated(steps, keep=2, verified=steps, spared=1) == [2]


def test_fewer_verified_steps_than_wanted_remove_none() -> None:
    assert outdated([1, 2, 3], keep=2, verified=[3]) == []
