"""When the scheduler looks again without an event."""

from __future__ import annotations

import pytest

from drumline.controller.scheduler.loop import (
    LOOK_FACTOR,
    LOOK_SECONDS,
    RETRY_SECONDS,
    next_look,
)


@pytest.mark.parametrize(
    ("settled", "retry_in", "waits", "took", "expected"),
    [
        (True, None, False, 0.1, None),
        (True, None, True, 0.1, LOOK_SECONDS),
        (True, None, True, 3.0, 3.0 * LOOK_FACTOR),
        (True, 5.0, True, 3.0, 5.0),
        (True, -1.0, False, 0.1, 0.05),
        (False, 5.0, True, 0.1, RETRY_SECONDS),
    ],
)
def test_the_next_look_is_due(
    settled: bool, retry_in: float | None, waits: bool, took: float, expected: float | None
) -> None:
    assert next_look(settled=settled, retry_in=retry_in, waits=waits, took=took) == expected
