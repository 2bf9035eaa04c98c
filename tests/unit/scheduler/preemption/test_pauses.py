"""A gang that was preempted again and again evicts nobody for a while."""

from __future__ import annotations

import pytest

from drumline_scheduler.preemption.pauses import LONGEST_PAUSE_SECONDS, WINDOW_SECONDS, pause_of


@pytest.mark.parametrize(
    ("preempted_at", "seconds"),
    [
        ((), 0),
        ((0.0, 1.0), 0),
        ((0.0, 1.0, 2.0), 60),
        ((2.0, 0.0, 1.0, 1.5), 120),
        ((-WINDOW_SECONDS, 0.0, 1.0), 0),
        (tuple(map(float, range(16))), LONGEST_PAUSE_SECONDS),
    ],
)
def test_each_further_preemption_within_an_hour_doubles_the_pause(
    preempted_at: tuple[float, ...], seconds: float
) -> None:
    last = max(preempted_at, default=0.0)
    assert not pause_of(preempted_at, now=last + seconds)
    if seconds:
        assert f"pauses for {seconds:g} s" in pause_of(preempted_at, now=last + seconds - 0.5)
