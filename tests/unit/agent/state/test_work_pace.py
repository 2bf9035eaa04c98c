"""Which pauses of a rank are usual, and how long the present one is."""

from __future__ import annotations

import pytest

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.work_pace import LONG_PHASES, REMEMBERED, WorkPace
from drumline_contract import Pause


def beat(step: int, *, at: float, phase: Phase = Phase.FORWARD) -> Heartbeat:
    return Heartbeat(
        generation=1,
        attempt=0,
        rank=0,
        step=step,
        total_steps=100,
        phase=phase,
        time_seconds=at,
    )


def pace_of(*steps: tuple[int, float]) -> WorkPace:
    pace = WorkPace()
    for step, at in steps:
        pace.note(beat(step, at=at))
    return pace


def test_the_longest_pause_that_ended_is_usual_but_not_that_of_the_first_step() -> None:
    pace = pace_of((1, 0.0), (2, 500.0), (3, 502.0), (4, 532.0), (5, 534.0))
    assert pace.usual_seconds == 30.0
    assert pace.pause(now=540.0) == Pause(seconds=6.0, usual_seconds=30.0)
    assert pace.pause(now=530.0) == Pause(seconds=0.0, usual_seconds=30.0)


def test_nothing_is_known_before_an_attempt_has_shown_a_few_steps() -> None:
    assert WorkPace().pause(now=1e6) is None
    pace = pace_of((7, 0.0), (8, 10.0))
    assert pace.pause(now=1e6) is None
    pace.note(beat(9, at=12.0))
    assert pace.pause(now=13.0) == Pause(seconds=1.0, usual_seconds=2.0)
    pace.begin_attempt()
    pace.note(beat(0, at=20.0, phase=Phase.STARTING))
    pace.note(beat(8, at=30.0))
    assert pace.pause(now=1e6) is None
    assert pace.usual_seconds == 2.0


@pytest.mark.parametrize("phase", sorted(LONG_PHASES))
def test_a_phase_that_may_take_long_is_no_pause_and_teaches_none(phase: Phase) -> None:
    pace = pace_of((1, 0.0), (2, 2.0), (3, 4.0))
    pace.note(beat(3, at=5.0, phase=phase))
    if phase not in (Phase.STARTING, Phase.RESTORING):  # these are before the first step
        assert pace.pause(now=9_000.0) == Pause(seconds=0.0, usual_seconds=2.0)
    pace.note(beat(4, at=9_000.0))
    assert pace.usual_seconds == 2.0


def test_waiting_for_data_and_work_that_is_done_are_pauses() -> None:
    for phase in (Phase.DATA, Phase.DONE):
        pace = pace_of((1, 0.0), (2, 2.0), (3, 4.0))
        pace.note(beat(3, at=5.0, phase=phase))
        assert pace.pause(now=105.0) == Pause(seconds=100.0, usual_seconds=2.0)


def test_the_same_heartbeat_again_is_no_sign_of_work() -> None:
    pace = pace_of((1, 0.0), (2, 2.0), (3, 4.0))
    for _ in range(2 * REMEMBERED):
        pace.note(beat(3, at=4.0))
    assert pace.pause(now=104.0) == Pause(seconds=100.0, usual_seconds=2.0)


def test_a_long_pause_is_forgotten_after_many_others() -> None:
    pace = pace_of((1, 0.0), (2, 1.0), (3, 101.0))
    for number in range(REMEMBERED):
        assert pace.usual_seconds == 100.0
        pace.note(beat(4 + number, at=102.0 + number))
    assert pace.usual_seconds == 1.0
