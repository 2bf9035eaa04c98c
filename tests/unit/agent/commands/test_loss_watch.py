"""Losses that are no numbers."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    "line",
    [
        "{{'loss': {}, 'grad_norm': 'nan', 'epoch': 0.1}}",
        "{{'loss': '{}', 'grad_norm': 1.0, 'epoch': 0.1}}",
        '{{"epoch": 3, "train_loss": {}}}',
        "epoch 3, batch 20: loss {}",
        "Epoch [3/10] Loss: {}",
        "loss: tensor({}, device='cuda:0')",
        " 10%|#  | 50/500 [00:12<01:50, 4.1it/s, loss={}]",
    ],
)
def test_three_losses_of_unknown_steps_are_noticed_too(line: str) -> None:
    watch = LossWatch()
    first = [watch.read_unknown(line.format(loss)) for loss in ("2.5", "nan", "nan")]
    fourth = watch.read_unknown(line.format("NaN"))
    assert first == [""] * 3
    assert not missing(fourth or "", "nan in the last lines", "learning rate")
    assert watch.read_unknown("saved a checkpoint") is None  # the remark stays
    assert watch.read_unknown(line.format("2.25")) == ""


@pytest.mark.parametrize(
    "line",
    ["{'eval_loss': nan}", "val loss: nan", "lossless nan", "the loss nancy", "loss_scale: nan"],
)
def test_other_figures_than_the_training_loss_are_left_out(line: str) -> None:
    assert LossWatch().read_unknown(line) is None


def test_a_second_loss_beside_numbered_steps_does_not_count() -> None:
    watch = LossWatch()
    watch.read(ProgressLine(step=1, loss=2.5))
    assert {watch.read_unknown("aux loss: nan") for _ in range(4)} == {None}


def test_a_step_without_a_loss_leaves_the_remark() -> None:
    watch = LossWatch()
    [*_, said] = [watch.read_unknown("loss: nan") for _ in range(3)]
    assert watch.read(ProgressLine(step=9)) != "" != said
