"""Jobs of a cluster become a trace that the simulator reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from drumline_cli.program import main
from drumline_simulator.export_trace.trace_jobs import trace_of
from drumline_simulator.input.trace import TraceJob, read
from tests.texts import missing
from tests.unit.overview.objects import (
    NOW,
    a_cluster,
    a_job,
    a_priority_class,
    at,
    printed,
    running,
)

ACCOUNT = {"until": at(-60), "starting": 80, "productive": 8000, "repeated": 400}


def ended(**fields: Any) -> dict[str, Any]:
    return {"phase": "Succeeded", "admittedAt": at(-2000), "finishedAt": at(-60), **fields}


def only(job: dict[str, Any], *classes: dict[str, Any]) -> TraceJob:
    return trace_of(a_cluster(job, *classes), anonymous=False).jobs[0]


def test_a_job_is_as_long_as_its_productive_time_at_full_size() -> None:
    job = a_job(
        "llama",
        spec={
            "nodes": 4,
            "minNodes": 2,
            "user": "ada",
            "priorityClassName": "high",
            "topology": {"required": "rack"},
        },
        status=ended(gpuSeconds=ACCOUNT),
    )
    assert only(job, a_priority_class("high", 7)) == TraceJob(
        line=None,
        name="team/llama",
        submit_seconds=0.0,
        gpus=32,
        duration_seconds=250.0,
        user="ada",
        queue="research",
        priority=7,
        nodes=4,
        min_nodes=2,
        required_level="rack",
    )


def test_a_running_job_has_the_rest_that_is_expected() -> None:
    account = {"until": at(0), "productive": 800}
    known = a_job("llama", status=running(gpuSeconds=account, expectedEnd=at(400)))
    assert only(known).duration_seconds == 500.0
    unknown = trace_of(
        a_cluster(a_job("llama", status=running(gpuSeconds=account))), anonymous=False
    )
    assert unknown.jobs[0].duration_seconds == 100.0
    assert unknown.cut == 1


def test_without_an_account_the_time_on_gpus_counts() -> None:
    assert only(a_job("old", status=ended())).duration_seconds == 1940.0


def test_what_has_not_run_is_counted_and_left_out() -> None:
    failed = a_job("failed", status=ended(gpuSeconds={"until": at(0), "starting": 900}))
    trace = trace_of(a_cluster(a_job("waits"), failed), anonymous=False)
    assert (trace.jobs, trace.never_ran) == ((), 2)


def test_the_file_is_read_back_and_names_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, file = tmp_path / "all.json", tmp_path / "trace.csv"
    jobs = [
        a_job("llama", created=-900, spec={"user": "ada"}, status=ended(gpuSeconds=ACCOUNT)),
        a_job("bert", created=-800, spec={"user": "ada"}, status=ended(gpuSeconds=ACCOUNT)),
        a_job("waits"),
    ]
    dump.write_text(printed(jobs))
    os.utime(dump, (NOW, NOW))
    assert main(("export-trace", str(file), "--anonymous", "-f", str(dump))) == 0
    assert not missing(capsys.readouterr().out, "2 jobs", "1 job", "GPU-time")
    text = file.read_text()
    assert not any(name in text for name in ("ada", "llama", "team", "research"))
    written = list(read(text.splitlines(), file="trace.csv"))
    assert [(job.name, job.user, job.submit_seconds) for job in written] == [
        ("job-1", "user-1", 0.0),
        ("job-2", "user-1", 100.0),
    ]
