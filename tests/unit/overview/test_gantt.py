"""Jobs over time: each stretch is where the status says, and nothing is drawn that it lacks."""

from __future__ import annotations

from typing import Any

from drumline.overview.gantt import HELD, PLANNED, STARTS_WITHIN, WAITED, rows_of
from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.pool_units import PoolUnits
from drumline.overview.rows import GanttBar
from tests.unit.overview.objects import NOW, a_cluster, a_job, at, running

HOUR = 3600.0


def bars(status: dict[str, Any], **fields: Any) -> tuple[GanttBar, ...]:
    cluster = a_cluster(a_job("job", status=status, **fields))
    places = positions(lines(cluster.jobs, cluster.priorities))
    jobs = job_rows(cluster.jobs, now=cluster.as_of, places=places, units=PoolUnits(cluster.pools))
    rows = rows_of(jobs, now=cluster.as_of, since=NOW - HOUR, until=NOW + HOUR)
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


def stays(*bounds: tuple[float, float], until: float = 0) -> dict[str, Any]:
    kept = [{"since": at(begins), "until": at(ends), "gpus": 8} for begins, ends in bounds]
    return {"gpuSeconds": {"until": at(until), "productive": 1, "stays": kept}}


def test_a_job_that_was_preempted_waited_between_its_stays() -> None:
    account = stays((-2900, -2000), (-1500, -1400), (-1400, -1000), (-300, -60), until=-60)
    bars_of = bars(running(queuedAt=at(-3000), expectedEnd=at(60), **account))
    assert bars_of == (
        a_bar(WAITED, -3000, -2900),
        a_bar(HELD, -2900, -2000),
        a_bar(WAITED, -2000, -1500),
        a_bar(HELD, -1500, -1000),
        a_bar(WAITED, -1000, -300),
        a_bar(HELD, -300, 0),
        a_bar(PLANNED, 0, 60),
    )


def test_a_job_that_waits_again_shows_what_it_held() -> None:
    waits = {"phase": "Pending", "queuedAt": at(-900)}
    assert bars({**waits, **stays((-800, -500), until=-500)}) == (
        a_bar(WAITED, -900, -800),
        a_bar(HELD, -800, -500),
        a_bar(WAITED, -500, 0),
    )


def test_before_it_was_queued_again_a_job_did_not_wait() -> None:
    account = stays((-900, -800), (-700, -600), until=-600)
    waits = {"phase": "Pending", "queuedAt": at(-100), **account}
    held = (a_bar(HELD, -900, -800), a_bar(HELD, -700, -600))
    assert bars(waits) == (*held, a_bar(WAITED, -100, 0))
    suspended = {"phase": "Suspended", "queuedAt": at(-1000), **account}
    assert bars(suspended, spec={"suspend": True})[:2] == (a_bar(WAITED, -1000, -900), held[0])


def test_a_suspended_job_and_what_lies_outside_the_period_are_left_out() -> None:
    suspended = {"phase": "Suspended", "admittedAt": at(-300)}
    assert bars(suspended, spec={"suspend": True}) == ()
    long_ago = {"phase": "Failed", "admittedAt": at(-9000), "finishedAt": at(-8000)}
    assert bars(long_ago, created=-9500) == ()
