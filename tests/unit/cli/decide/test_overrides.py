"""The bill of an override: who gives way for the job, and what other queues miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.texts import missing
from tests.unit.cli.decide.test_command import (
    a_job,
    a_node,
    a_pool,
    a_queue,
    placed_on,
    run,
    written,
)

Json = dict[str, Any]
NOW = "2026-11-29T20:00:00Z"
GRANT = {"job": "team/hero", "until": "2026-11-29T22:00:00Z", "grantedBy": "jane", "reason": "demo"}


def a_cluster(*, until: str = GRANT["until"], status: Json | None = None) -> list[Json]:
    """Two queues of 8 GPUs each: both jobs of `theirs` run within the quota, or one waits."""
    stored = {"resourceVersion": "1", "creationTimestamp": NOW}
    mine = a_queue(8, name="q", parent="org", overrides=[{**GRANT, "until": until}])
    runs = {**placed_on("n2"), "admittedAt": "2026-11-29T19:00:00Z"}
    hero = a_job("hero", nodes=2)
    theirs = a_job("theirs", queue="other", status={**runs})
    if status is not None:
        mine["status"] = status
    return [
        *(a_node("n1"), a_node("n2"), a_pool(), a_queue(0, name="org")),
        mine,
        a_queue(8, name="other", parent="org"),
        {**hero, "metadata": {**hero["metadata"], **stored}},
        {**theirs, "metadata": {**theirs["metadata"], **stored}},
    ]


def decided(folder: Path, capsys: pytest.CaptureFixture[str], *objects: Json) -> Json:
    file = written(folder, {"apiVersion": "v1", "kind": "List", "items": list(objects)})
    code, out, _ = run(capsys, "decide", "-f", file, "-o", "json")
    assert code == 0
    return json.loads(out)


def test_the_victims_and_the_expected_bill_of_a_waiting_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = decided(tmp_path, capsys, *a_cluster(until="2100-01-01T00:00:00Z"))
    rows = {row["job"]: row for row in answer["verdicts"]}
    victim = rows["team/theirs"]
    assert (victim["verdict"], victim["reason"], victim["by"]) == (
        "Preempted",
        "Override",
        "team/hero",
    )
    [bill] = answer["overrides"]
    assert (bill["job"], bill["grantedBy"], bill["reason"], bill["gpus"]) == (
        *("team/hero", "jane", "demo"),
        8,
    )
    hours = (bill["until"] - answer["asOf"]) / 3600
    assert bill["expectedGpuHours"] == pytest.approx(8 * hours, abs=0.1)
    file = written(tmp_path, *a_cluster(until="2100-01-01T00:00:00Z"))
    _, table, _ = run(capsys, "decide", "-f", file)
    assert not missing(table, "team/hero", "jane", "demo", "8 GPUs", "2100-01-01T00:00:00Z")


def test_an_override_that_has_ended_takes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = decided(tmp_path, capsys, *a_cluster(until="2000-01-01T00:00:00Z"))
    assert [row["verdict"] for row in answer["verdicts"]] == ["Waits"]
    assert [(row["gpus"], row["expectedGpuHours"]) for row in answer["overrides"]] == [(0, 0)]


@pytest.mark.parametrize("used", [None, 7200])
def test_the_bill_of_a_running_job_continues_the_one_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], used: int | None
) -> None:
    use = {"job": "team/hero", "gpus": 8, "gpuSeconds": used, "at": "2026-11-29T00:00:00Z"}
    objects = a_cluster(
        until="2100-01-01T00:00:00Z", status=None if used is None else {"overrides": [use]}
    )
    hero, theirs = objects[-2:]
    since = {"admittedAt": "2026-11-29T00:00:00Z", "startedAt": "2026-11-29T00:00:00Z"}
    hero["status"] = {**placed_on("n1", "n2"), **since}
    del theirs["status"]
    answer = decided(tmp_path, capsys, *objects)
    [bill] = answer["overrides"]
    assert bill["gpus"] == 8
    passed = (answer["asOf"] - 1_795_910_400) / 3600
    assert bill["gpuHours"] == pytest.approx(8 * passed + (used or 0) / 3600, abs=0.1)
