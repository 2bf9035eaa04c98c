from __future__ import annotations

from typing import Any

import pytest

from drumline_trainer.agent.leader.hang_detection import (
    Hung,
    Moving,
    Stalled,
    detect_hang,
    patience_seconds,
)
from drumline_trainer.agent.protocol.member_reports import RankView
from drumline_trainer.rank_protocol.heartbeat import Heartbeat, Phase

DATA, FORWARD = (7, 0, 4), (7, 0, 5)


def view(rank: int, position: tuple[int, int, int] = FORWARD, **changes: Any) -> RankView:
    fields = {"silent_seconds": 3.0, "patience_seconds": 2.0, **changes}
    return RankView(rank=rank, position=position, **fields)


CASES = {
    "one moves": ([view(0, DATA), view(1, silent_seconds=1.0)], Moving()),
    "one is behind": ([view(0), view(1, DATA), view(2)], Hung(ranks=(1,), silent_seconds=3.0)),
    "two are behind": (
        [view(0), view(1, DATA), view(2, DATA, silent_seconds=4.0)],
        Hung(ranks=(1, 2), silent_seconds=3.0),
    ),
    "of two behind one is stopped": (
        [view(0), view(1, DATA), view(2, DATA, evidence="stopped")],
        Hung(ranks=(2,), silent_seconds=3.0),
    ),
    "all in one place": ([view(0), view(1)], Stalled(silent_seconds=3.0)),
    "all in one place, one stopped": (
        [view(0), view(1, evidence="stopped")],
        Hung(ranks=(1,), silent_seconds=3.0),
    ),
    "all in one place, one busy": ([view(0), view(1, evidence="busy")], Moving()),
    "all in one place, one busy for long": (
        [view(0, silent_seconds=10.5), view(1, silent_seconds=10.5, evidence="busy")],
        Hung(ranks=(1,), silent_seconds=10.5),
    ),
    "behind, but those ahead compute": ([view(0, evidence="busy"), view(1, DATA)], Moving()),
    "someone writes a checkpoint": (
        [view(0, patience_seconds=30.0), view(1, DATA)],
        Moving(),
    ),
    "the others are done": (
        [view(0, done=True), view(1, DATA)],
        Hung(ranks=(1,), silent_seconds=3.0),
    ),
    "all are done": ([view(0, done=True, silent_seconds=99.0)], Moving()),
    "a single rank": ([view(0)], Stalled(silent_seconds=3.0)),
}


@pytest.mark.parametrize(("views", "verdict"), CASES.values(), ids=CASES)
def test_who_hangs(views: list[RankView], verdict: object) -> None:
    assert detect_hang(views) == verdict


@pytest.mark.parametrize(
    ("phase", "step_seconds", "patience"),
    [
        (Phase.FORWARD, 0.1, 2.0),
        (Phase.DATA, 3.0, 12.0),
        (Phase.CHECKPOINT, 0.1, 30.0),
        (Phase.CHECKPOINT, 5.0, 50.0),
        (Phase.RESTORING, 0.1, 30.0),
        (Phase.SNAPSHOT, 0.1, 30.0),
        (Phase.FORWARD, None, 30.0),
    ],
)
def test_how_long_a_silence_is_nothing_unusual(
    phase: Phase, step_seconds: float | None, patience: float
) -> None:
    beat = Heartbeat(
        generation=1, attempt=0, rank=0, step=1, total_steps=9, phase=phase, time_seconds=0.0
    )
    assert patience_seconds(beat, step_seconds=step_seconds) == patience


def test_a_rank_that_has_not_spoken_yet_has_long() -> None:
    assert patience_seconds(None, step_seconds=0.1) == 30.0
