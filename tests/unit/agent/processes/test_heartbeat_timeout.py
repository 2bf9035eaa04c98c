from __future__ import annotations

import pytest

from drumline_agent.processes.local_ranks import patience_seconds
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase


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
