from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_contract.config import OptimizerConfig, RateSchedule, TrainerConfig
from drumline_trainer.optimization.learning_rate import changed_rate, learning_rate
from tests.texts import missing

CONFIG = OptimizerConfig(learning_rate=1.0, min_learning_rate_ratio=0.1, warmup_steps=4)


def rates(steps: int, config: OptimizerConfig = CONFIG, *, batch: int = 16) -> list[float]:
    whole = TrainerConfig(optimizer=config, steps=steps, global_batch_size=batch)
    return [learning_rate(step, whole) for step in range(steps)]


def shaped(schedule: RateSchedule) -> OptimizerConfig:
    return OptimizerConfig(
        schedule=schedule,
        learning_rate=1.0,
        min_learning_rate_ratio=0.2,
        warmup_steps=2,
        decay_share=0.4,
    )


def test_rises_in_a_line_and_falls_along_a_cosine() -> None:
    assert rates(9) == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.1 + 0.9 * 0.8535534, 0.55, 0.1 + 0.9 * 0.1464466, 0.1]
    )


def test_falls_in_a_line() -> None:
    assert rates(7, shaped(RateSchedule.LINEAR)) == pytest.approx(
        [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    )


def test_stays_and_decays_over_the_last_share_of_the_steps() -> None:
    assert rates(10, shaped(RateSchedule.WSD)) == pytest.approx(
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    )


def test_stays() -> None:
    assert rates(5, shaped(RateSchedule.CONSTANT)) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_without_warm_up_it_starts_at_the_peak() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=0, min_learning_rate_ratio=0.0)
    assert rates(3, config) == pytest.approx([1.0, 0.5, 0.0])


def test_a_run_shorter_than_its_warm_up_never_passes_the_peak() -> None:
    assert rates(2) == pytest.approx([0.25, 0.5])
    assert learning_rate(50, TrainerConfig(optimizer=CONFIG, steps=5)) == pytest.approx(0.1)


def test_a_larger_batch_than_the_reference_has_a_larger_rate_warm_up_and_all() -> None:
    config = OptimizerConfig(
        schedule=RateSchedule.CONSTANT, learning_rate=0.5, warmup_steps=2, reference_batch_size=8
    )
    assert rates(3, config, batch=32) == [1.0, 2.0, 2.0]
    assert rates(3, config, batch=4) == [0.125, 0.25, 0.25]


def changed(*, step: int = 79, **here: Any) -> str:
    there = TrainerConfig(steps=80, optimizer=shaped(RateSchedule.COSINE))
    return changed_rate({"config": there.to_dict()}, replace(there, **here), step=step)


def test_a_longer_run_says_how_its_rates_change() -> None:
    assert changed(steps=80) == ""
    said = changed(steps=120, step=80)
    assert not missing(said, "step 81 is 0.4,", "had 0.2:", "steps is 80 there and 120 here")
    assert "steps is 80 there and 40 here" in changed(steps=40, step=20)
    assert changed(steps=40, step=40) == ""  # nothing is left to train


def test_a_rate_that_does_not_depend_on_the_length_is_not_spoken_of() -> None:
    constant = shaped(RateSchedule.CONSTANT)
    there = TrainerConfig(steps=80, optimizer=constant)
    saved = {"config": there.to_dict()}
    assert changed_rate(saved, replace(there, steps=500), step=20) == ""
    followed = replace(there, optimizer=replace(constant, reference_batch_size=8))
    said = changed_rate(saved, replace(followed, global_batch_size=32), step=20)
    assert not missing(said, "global_batch_size is 16 there and 32 here", "reference_batch_size")
    assert changed_rate({}, there, step=20) == ""
