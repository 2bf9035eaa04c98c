"""Objects are read as the API has them, and what is none is counted."""

from __future__ import annotations

import json

from drumline.overview.objects import JobObject, decoded, seconds
from tests.unit.overview.objects import NOW, a_job, at


def test_one_object_that_is_none_costs_no_other() -> None:
    raws = [json.dumps(a_job("good")).encode(), b'{"metadata": 3}', b"[" * 100_000]
    read = decoded(raws, JobObject)
    assert [job.key for job in read.objects] == ["team/good"]
    assert read.unreadable == 2


def test_times_of_the_api_are_seconds_and_no_time_is_none() -> None:
    assert seconds(at(5)) == NOW + 5
    assert seconds("yesterday") is None
    assert seconds(None) is None
    assert seconds("2027-01-15T08:00:00") == NOW
    # The offset moves it beyond year 9999, which no text can hold.
    assert seconds("9999-12-31T23:59:59-23:00") == seconds("9999-12-31T23:59:59Z")
