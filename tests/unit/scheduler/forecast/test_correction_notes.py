"""Of the forecasts of waiting jobs a few each are remembered, and room is left for new jobs."""

from __future__ import annotations

from drumline_scheduler.forecast.correction import (
    MOST_NOTED,
    MOST_OF_A_JOB,
    NOTED_EACH_SECONDS,
    ForecastNotes,
    NotedForecast,
)


def add(notes: ForecastNotes, uid: str, *, times: range) -> None:
    """Note a job, so often and as far apart as may be."""
    for time in times:
        at = time * NOTED_EACH_SECONDS
        notes.add(uid, NotedForecast(group="q", made_at=at, expected_at=at + 60))


def times_of(notes: ForecastNotes, uid: str) -> list[float]:
    """Forget a job; when it was noted, in `NOTED_EACH_SECONDS`."""
    return [noted.made_at / NOTED_EACH_SECONDS for noted in notes.take(uid)]


def test_a_job_is_not_noted_again_too_soon() -> None:
    notes = ForecastNotes()
    for at in (0.0, NOTED_EACH_SECONDS - 1, NOTED_EACH_SECONDS):
        notes.add("1", NotedForecast(group="q", made_at=at, expected_at=60))
    assert times_of(notes, "1") == [0, 1]


def test_a_job_that_waits_long_keeps_its_first_and_its_newest() -> None:
    notes = ForecastNotes()
    add(notes, "1", times=range(100))
    assert len(list(notes)) == MOST_OF_A_JOB
    assert times_of(notes, "1") == [0, 1, 2, 3, 96, 97, 98, 99]
    assert (list(notes.uids), list(notes)) == ([], [])


def full_of_long_waiters() -> ForecastNotes:
    notes = ForecastNotes()
    for job in range(MOST_NOTED // 4):
        add(notes, f"old-{job}", times=range(4))
    assert len(list(notes)) == MOST_NOTED
    return notes


def test_jobs_that_wait_long_leave_room_for_new_ones() -> None:
    notes = full_of_long_waiters()
    add(notes, "longest", times=range(4, 7))
    for job in range(MOST_NOTED // 4):
        add(notes, f"new-{job}", times=range(4, 5))
    assert len(list(notes)) == MOST_NOTED
    assert all(times_of(notes, f"new-{job}") == [4] for job in range(MOST_NOTED // 4))
    kept = [times_of(notes, f"old-{job}") for job in range(MOST_NOTED // 4)]
    assert {tuple(times) for times in kept} <= {(1, 2, 3), (2, 3)}  # each the newest


def test_who_has_as_many_gives_nothing_up() -> None:
    """Else all would lose their first forecasts, again and again."""
    notes = full_of_long_waiters()
    add(notes, "old-0", times=range(4, 5))
    assert times_of(notes, "old-0") == [0, 1, 2, 3]
    notes = ForecastNotes()
    for job in range(MOST_NOTED):
        add(notes, str(job), times=range(1))
    add(notes, "late", times=range(1))
    assert "late" not in notes.uids
    assert times_of(notes, "0") == [0]
    add(notes, "late", times=range(1))  # the place of one that started
    assert "late" in notes.uids
