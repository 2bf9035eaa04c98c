"""Losses that are no numbers."""

from __future__ import annotations

from drumline_agent.commands.loss_watch import LossWatch
from drumline_agent.commands.progress_lines import ProgressLine
from tests.texts import missing


def said(*losses: float | str | None) -> list[str]:
    """Return the answer of the watch after each step, from step 1."""
    watch = LossWatch()
    return [
        watch.read(
            ProgressLine(step=step, not_finite=loss)
            if isinstance(loss, str)
            else ProgressLine(step=step, loss=loss)
        )
        for step, loss in enumerate(losses, 1)
    ]


def test_three_steps_without_a_number_are_a_run_that_has_diverged() -> None:
    *before, last = said(2.5, "nan", "nan", "nan")
    assert before == ["", "", ""]
    assert not missing(last, "nan since step 2", "learning rate")


def test_a_skipped_step_of_mixed_precision_is_none() -> None:
    assert said(2.5, "nan", 2.4, "inf", "nan", 2.3) == [""] * 6


def test_a_number_takes_it_back_and_a_line_without_a_loss_does_not() -> None:
    *_, without, number = said("inf", "inf", "inf", None, 2.0)
    assert "since step 1" in without
    assert number == ""


def test_one_step_that_is_printed_often_is_one_step() -> None:
    watch = LossWatch()
    assert {watch.read(ProgressLine(step=4, not_finite="nan")) for _ in range(9)} == {""}
