"""Paths of the archive, there and back."""

from __future__ import annotations

from datetime import date

import pytest

from drumline_addons.archive.layout import (
    EarlierLogs,
    EndedPath,
    day_of,
    earlier_logs,
    ended_day,
    live_path,
    live_uid,
)


def test_the_path_of_an_ended_job_is_read_back() -> None:
    path = EndedPath(day=date(2026, 11, 23), namespace="research", name="llama.2", uid="u-1")
    assert str(path) == "ended/2026-11-23/research/llama.2/u-1.json"
    assert EndedPath.parse(str(path)) == path
    assert path.logs == "ended/2026-11-23/research/llama.2/u-1.log"
    assert (EndedPath.parse(path.logs), ended_day(path.logs)) == (None, path.day)


def test_the_path_of_a_live_job_is_read_back() -> None:
    assert live_uid(live_path("u-1")) == "u-1"


@pytest.mark.parametrize(
    "path", ["ended/x/a/b/c.json", "ended/2026-11-23/a/b.json", "live/u.json", "notes.txt", ""]
)
def test_files_of_others_are_no_ended_jobs(path: str) -> None:
    assert EndedPath.parse(path) is None


@pytest.mark.parametrize("path", ["live/a/b.json", "live/a", "ended/a.json", "a.json"])
def test_files_of_others_are_no_live_jobs(path: str) -> None:
    assert live_uid(path) is None


def test_days_are_those_of_utc() -> None:
    assert day_of(86_399.0) == date(1970, 1, 1)
    assert day_of(86_400.0) == date(1970, 1, 2)


def test_the_path_of_earlier_lines_is_read_back_and_those_of_others_are_none() -> None:
    first = EarlierLogs(namespace="research", uid="u-1", generation=3, at=86_400)
    second = EarlierLogs(namespace="research", uid="u-1", generation=2, at=172_800)
    assert str(first) == "logs/research/u-1/1970-01-02.3.86400.log"
    foreign = [
        *("logs/research/u-1/1970-01-01.3.86400.log", "logs/a/b/c/1970-01-02.3.86400.log"),
        *("logs/a/b/1970-01-02.3.log", "logs/a/b/1970-01-02.x.86400.log", "live/u-1.json"),
        f"logs/a/b/1970-01-02.3.{'9' * 30}.log",
    ]
    assert earlier_logs([str(second), *foreign, str(first)]) == [first, second]
