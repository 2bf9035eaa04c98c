"""Jobs over time: each stretch is where the status says, and nothing is drawn that it lacks."""

from __future__ import annotations

from typing import Any

from drumline.overview.gantt import HELD, PLANNED, STARTS_WITHIN, WAITED, gantt_rows
from drumline.overview.rows import GanttBar
from tests.unit.overview.objects import NOW, a_cluster, a_job, at, running

HOUR = 3600.0


def bars(status: dict[str, Any], **fields: Any) -> tuple[GanttBar, ...]:
    cluster = a_cluster(a_job("job", status=status, **fields))
    rows = gantt_rows(cluster, since=NOW - HOUR, until=NOW + HOUR)
    return rows[0].bars if rows else ()


def a_bar(state: str, begins: float, ends: float | None) -> GanttBar:
    return GanttBar(
        state=state, begins_at=NOW + begins, ends_at=None if ends is None else NOW + ends
    )


def test_a_running_job_waited_holds_and_will_hold() -> None:
    status = running(queuedAt=at(-900), expectedEnd=at(1800))
    assert bars(status) == (
        a_bar(WAITED, -900, -300),
        a_bar(HELD, -300, 0),
        a_bar(PLANNED, 0, 1800),
    )


def test_nobody_knows_the_end_of_a_job_without_a_forecast() -> None:
    assert bars(running())[-1] == a_bar(PLANNED, 0, None)


def test_an_expected_end_that_has_passed_is_drawn_at_now() -> None:
    assert bars(running(expectedEnd=at(-60)))[-1] == a_bar(PLANNED, 0, 0)


def test_a_waiting_job_has_the_band_of_its_start() -> None:
    status = {"phase": "Pending", "reason": "QuotaExhausted", "queuedAt": at(-100)}
    assert bars(status) == (a_bar(WAITED, -100, 0),)
    known = {**status, "expectedStart": at(-5), "expectedStartBy": at(600)}
    assert bars(known)[-1] == a_bar(STARTS_WITHIN, 0, 600)
    late = {**status, "expectedStart": at(300)}
    assert bars(late)[-1] == a_bar(STARTS_WITHIN, 300, None)


def test_what_has_ended_held_until_its_end() -> None:
    ended = {"phase": "Succeeded", "admittedAt": at(-300), "finishedAt": at(-60)}
    assert bars(ended) == (a_bar(WAITED, -600, -300), a_bar(HELD, -300, -60))


def test_a_suspended_job_and_what_lies_outside_the_period_are_left_out() -> None:
    suspended = {"phase": "Suspended", "admittedAt": at(-300)}
    assert bars(suspended, spec={"suspend": True}) == ()
    long_ago = {"phase": "Failed", "admittedAt": at(-9000), "finishedAt": at(-8000)}
    assert bars(long_ago, created=-9500) == ()
