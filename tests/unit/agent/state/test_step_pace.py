from __future__ import annotations

from drumline_agent.state.rank_status import StepPace


def pace_of(*steps: tuple[int, float]) -> StepPace:
    pace = StepPace()
    for step, at in steps:
        pace.note(step, at=at)
    return pace


def test_the_first_step_shown_does_not_count() -> None:
    pace = pace_of((101, 60.0), (151, 160.0), (201, 260.0))
    assert pace.seconds_left(1001, now=260.0) == 1600.0


def test_evaluations_count_and_the_time_since_the_newest_step_has_passed() -> None:
    pace = pace_of((0, 0.0), (10, 10.0), (11, 110.0))
    assert pace.seconds_left(22, now=110.0) == 110.0
    assert pace.seconds_left(22, now=150.0) == 70.0
    assert pace.seconds_left(22, now=1e6) == 0.0


def test_nothing_is_known_before_two_steps_or_without_their_number() -> None:
    assert StepPace().seconds_left(10, now=1.0) is None
    assert pace_of((3, 1.0)).seconds_left(10, now=2.0) is None
    assert pace_of((3, 1.0), (4, 2.0)).seconds_left(0, now=2.0) is None
    assert pace_of((10, 1.0)).seconds_left(10, now=2.0) == 0.0


def test_a_run_that_goes_back_counts_anew() -> None:
    assert pace_of((50, 0.0), (60, 1.0), (20, 2.0), (30, 12.0)).seconds_left(40, now=12.0) == 10.0
