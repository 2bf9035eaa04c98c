from __future__ import annotations

from typing import Any

import pytest

from drumline_agent.leader.hang_detection import Hung, Moving, Stalled, detect_hang
from drumline_agent.protocol.member_reports import RankView

RESTORING = (-1, 0, 1)
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
    "a restore of minutes, of which one rank reports pieces": (
        [
            view(0, RESTORING, silent_seconds=0.8, patience_seconds=30.0, evidence="busy"),
            view(1, RESTORING, silent_seconds=400.0, patience_seconds=30.0),
        ],
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
