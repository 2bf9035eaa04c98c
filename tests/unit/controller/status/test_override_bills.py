"""The bill of an override in a queue's status: exact, with a write only when the GPUs change."""

from __future__ import annotations

from typing import Any

import msgspec

from drumline.controller.queues.overrides import override_fields
from drumline.overview.overrides import override_rows, override_text
from drumline_api.objects.custom import StoredTrainingQueue
from drumline_scheduler import Override, Queue
from tests.texts import missing

JOB, HOUR = "team/hero", 3600.0
QUEUE = Queue(
    name="q",
    nominal={"h100": 8},
    overrides=(Override(job=JOB, until=4 * HOUR, granted_by="jane", reason="launch"),),
)


def after(before: dict[str, Any], gpus: int | None, *, now: float) -> dict[str, Any]:
    below = {} if gpus is None else {("q", JOB): gpus}
    return override_fields(QUEUE, before=before, below=below, now=now)


def test_the_bill_is_the_sum_of_gpus_over_time_until_the_override_ends() -> None:
    status = after({}, 0, now=0.0)
    assert after(status, 0, now=HOUR) == status  # time alone writes nothing
    status = after(status, 8, now=HOUR)
    assert after(status, 8, now=2 * HOUR) == status
    status = after(status, 4, now=2 * HOUR)
    assert status["overrides"] == [
        {"job": JOB, "gpus": 4, "gpuSeconds": 8 * 3600, "at": "1970-01-01T02:00:00Z"}
    ]
    assert shown(status, now=3 * HOUR) == (12.0, 4.0)
    assert shown(status, now=9 * HOUR) == (16.0, 0.0)
    ended = after(status, None, now=9 * HOUR)
    assert (ended["overrides"][0]["gpus"], shown(ended, now=9 * HOUR)) == (0, (16.0, 0.0))


def test_a_queue_without_overrides_has_no_bill_and_a_broken_status_begins_anew() -> None:
    plain = Queue(name="q", nominal={})
    assert override_fields(plain, before={"overrides": [1]}, below={}, now=0.0) == {}
    assert after({"overrides": [{"gpus": "x"}]}, 2, now=0.0)["overrides"][0]["gpus"] == 2


def test_the_text_names_who_until_when_and_why() -> None:
    text = override_text(row(after({}, 8, now=0.0), now=HOUR))
    assert not missing(text, JOB, "1970-01-01T04:00:00Z", "jane", "launch", "8 GPUs", "8.0", "24.0")


def shown(status: dict[str, Any], *, now: float) -> tuple[float, float]:
    read = row(status, now=now)
    return read.gpu_hours, read.expected_gpu_hours


def row(status: dict[str, Any], *, now: float) -> Any:
    override = {
        "job": JOB,
        "until": "1970-01-01T04:00:00Z",
        "grantedBy": "jane",
        "reason": "launch",
    }
    queue = {"metadata": {"name": "q"}, "spec": {"overrides": [override]}, "status": status}
    [read] = override_rows([msgspec.convert(queue, StoredTrainingQueue)], now=now)
    return read
