from __future__ import annotations

import pytest

from drumline_contract.step_figures.step_record import Rewards, Staleness
from drumline_trainer.metrics.reporter import format_duration, progress_line, short_count, smoothed


def test_the_line() -> None:
    line = progress_line(
        step=40,
        total_steps=200,
        loss=2.6131,
        gradient_norm=0.8104,
        tokens_per_second=18_240.0,
        eta_seconds=41.7,
    )
    assert line == "step 40/200  loss 2.613  grad 0.810  18.2k tok/s  eta 0:42"


def test_the_line_of_a_device_whose_peak_is_known() -> None:
    line = progress_line(
        step=1,
        total_steps=2,
        loss=1.0,
        gradient_norm=1.0,
        tokens_per_second=5.0,
        eta_seconds=1.0,
        mfu=0.4126,
    )
    assert line == "step 1/2  loss 1.000  grad 1.00  5 tok/s  mfu 41.3%  eta 0:01"


@pytest.mark.parametrize(("most", "shown"), [(0, ""), (5, "  stale 2.5")])
def test_the_line_of_workers_that_do_not_wait_for_each_other(most: int, shown: str) -> None:
    line = progress_line(
        step=1,
        total_steps=2,
        loss=1.0,
        gradient_norm=1.0,
        tokens_per_second=5.0,
        eta_seconds=1.0,
        staleness=Staleness(mean=most / 2, most=most, steps_ahead=1),
    )
    assert line == f"step 1/2  loss 1.000  grad 1.00  5 tok/s{shown}  eta 0:01"


def test_the_line_of_a_run_that_learns_from_preferences() -> None:
    line = progress_line(
        step=1,
        total_steps=2,
        loss=0.5,
        gradient_norm=1.0,
        tokens_per_second=5.0,
        eta_seconds=1.0,
        rewards=Rewards.of((-0.25, -0.75, 0.875)),
    )
    ahead = "margin +0.500 (88% ahead)"
    assert line == f"step 1/2  loss 0.500  {ahead}  grad 1.00  5 tok/s  eta 0:01"


@pytest.mark.parametrize(
    ("value", "text"), [(7.4, "7"), (950.0, "950"), (1000.0, "1.00k"), (1_250_000.0, "1.25M")]
)
def test_counts(value: float, text: str) -> None:
    assert short_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (725, "12:05"), (10_800, "3:00:00")]
)
def test_clock(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_one_slow_window_does_not_turn_the_rest_of_a_run_around() -> None:
    assert smoothed(None, 2.0) == 2.0
    assert smoothed(2.0, 12.0) == pytest.approx(5.0)
