"""list, queue, why, nodes, share, usage and gantt on files, as people call them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from drumline.cli import overview_arguments
from drumline.cli.overview.json_output import FILE, KINDS, schema, text
from drumline.cli.program import main
from drumline.overview.usage import GROUPS
from tests.unit.overview.objects import (
    NOW,
    a_job,
    a_node,
    a_pod,
    a_pool,
    a_priority_class,
    a_queue,
    a_workload,
    at,
    printed,
    running,
)

ROOT = Path(__file__).parents[4]
BUDGET = {"gpuHours": 100, "windowDays": 30}
BLOCKED = {"phase": "Pending", "reason": "QuotaExhausted", "message": "needs 32 GPUs; 8 are free"}
OBJECTS = [
    a_queue("research", gpus=32, status={"shareSeconds": 30, "shareSecondsAt": at(-60)}),
    a_pool(),
    a_priority_class("high", 100),
    *(a_node(f"node-{number}") for number in (1, 2)),
    a_job(
        "llama",
        spec={"user": "ada"},
        status=running(
            step=420,
            totalSteps=1000,
            loss="2.31",
            expectedEnd=at(5000),
            gpuSeconds={"until": at(-10), "productive": 3520},
        ),
    ),
    a_job(
        "big",
        spec={"nodes": 4},
        status={
            **BLOCKED,
            "queuedAt": at(-1500),
            "expectedStart": at(600),
            "expectedStartBy": at(5400),
        },
    ),
    a_pod("notebook", gpus=2, status={"phase": "Pending"}),
    a_job("other", namespace="elsewhere", status={**BLOCKED, "queuedAt": at(-100)}),
]
COMMANDS = {
    "list": ("list", "-A"),
    "queue": ("queue",),
    "why": ("why", "big", "-n", "team"),
    "why TYPE/NAME": ("why", "pod/notebook", "-n", "team"),
    "nodes": ("nodes",),
    "share": ("share",),
    "usage": ("usage", "--by", "queue,user", "--since", "30d"),
    "gantt": ("gantt", "-A", "--since", "30d"),
}


@pytest.fixture
def dump(tmp_path: Path) -> str:
    file = tmp_path / "all.json"
    file.write_text(printed(OBJECTS))
    os.utime(file, (NOW, NOW))
    return str(file)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    done = capsys.readouterr()
    assert done.out == ""
    return code, done.err


def test_jobs_of_the_namespace_are_listed_with_their_place_in_the_whole_line(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "list", "-n", "elsewhere", "-f", dump).splitlines()
    assert lines[0].split() == ["JOB", "QUEUE", "PHASE", "GPUS", "STEP", "LOSS", "AGE", "DETAIL"]
    assert lines[1].endswith("#2 in line, starts not known: QuotaExhausted")
    assert len(lines) == 2


def test_a_queue_shows_its_line_with_a_band_of_starts(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head, columns, *line = shown(capsys, "queue", "research", "-f", dump).splitlines()
    assert head == "research: 8 of 32 GPUs of gpus held; 1 job running, 2 jobs for 40 GPUs in line"
    assert columns.split() == ["#", "JOB", "GPUS", "WAITS", "STARTS", "REASON", "DETAIL"]
    assert [re.split("  +", row.strip()) for row in line] == [
        [
            *("1", "team/big", "32", "25 min", "in 10 min to 1 h 30 min", "QuotaExhausted"),
            "needs 32 GPUs; 8 are free",
        ],
        [
            *("2", "elsewhere/other", "8", "1 min 40 s", "not known", "QuotaExhausted"),
            "needs 32 GPUs; 8 are free",
        ],
    ]


def test_a_card_says_why_and_what_to_do(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "why", "big", "-n", "team", "-f", dump) == (
        "team/big: Pending, QuotaExhausted\n"
        "  because   needs 32 GPUs; 8 are free\n"
        "  waits     for 25 min\n"
        "  place     1 of 2 in queue research\n"
        "  starts    in 10 min to 1 h 30 min\n"
        "  quota     8 of 32 GPUs of gpus held\n"
        "  held by   team/llama of research, 8 GPUs, ends in 1 h 23 min\n"
        "  to do     Wait, suspend one of the jobs that are named, or raise the queue's"
        " nominalGpus.\n"
    )


def test_a_card_names_the_pool_of_what_is_surplus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "gpuPool": "gpus",
        "nodes": ["node-1", "node-2"],
        "surplus": {"gpuPool": "spot", "indices": [1]},
    }
    job = a_job("mixed", spec={"nodes": 2}, status={**running(), "assignment": places})
    file = tmp_path / "all.json"
    file.write_text(printed([a_queue("research", gpus=32), job]))
    card = shown(capsys, "why", "mixed", "-n", "team", "-f", str(file))
    assert "  pool      gpus, surplus in spot\n" in card


def test_a_budget_stands_beside_the_quota(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spent = {"spentGpuHours": 110, "until": at(-60)}
    message = "queue research has spent 110 % of its budget of 100 GPU-hours in 30 days"
    file = tmp_path / "all.json"
    file.write_text(
        printed(
            [
                a_queue("research", budget=BUDGET, status={"budget": spent}),
                a_job(
                    "big",
                    status={"phase": "Pending", "reason": "BudgetSpent", "message": message},
                ),
            ]
        )
    )
    head, *_ = shown(capsys, "queue", "-f", str(file)).splitlines()
    assert head == (
        "research: 0 of 16 GPUs of gpus held, 110 of 100 GPU-hours of 30 days spent;"
        " 0 jobs running, 1 job for 8 GPUs in line"
    )
    card = shown(capsys, "why", "big", "-n", "team", "-f", str(file))
    assert "  budget    110 of 100 GPU-hours of 30 days spent\n" in card
    assert "  to do     Wait until enough has flowed back, use another queue, or raise" in card


def test_nodes_shares_and_use(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = shown(capsys, "nodes", "-f", dump).splitlines()
    first = ["node-1", "gpus", "OnDemand", "r1", "8/8", "Ready", "team/llama", "-"]
    assert nodes[1].split() == first
    shares = shown(capsys, "share", "-f", dump).splitlines()
    assert shares[1].endswith("100.0 %   100.0 %   +0.0 %   team/big, in 10 min to 1 h 30 min")
    usage = shown(capsys, "usage", "--by", "user", "-f", dump).splitlines()
    assert usage[1].split()[:4] == ["ada", "1", "1.0", "100.0"]
    assert usage[2].split()[:3] == ["all", "1", "1.0"]


def test_jobs_over_time_are_printed_and_saved(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = shown(capsys, "gantt", "-n", "team", "-f", dump).splitlines()
    assert [line.split()[0] for line in drawn[1:3]] == ["team/llama", "team/big"]
    file = tmp_path / "gantt.html"
    assert shown(capsys, "gantt", "-A", "-f", dump, "--save", str(file)) == f"{file}\n"
    assert "elsewhere/other" in file.read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_what_the_schema_says(
    command: str, dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document: dict[str, Any] = json.loads(
        shown(capsys, *COMMANDS[command], "-o", "json", "-f", dump)
    )
    assert document["rows"]
    assert document["kind"] == KINDS[command].__name__
    assert document["asOf"] == NOW
    jsonschema.Draft202012Validator(schema()).validate(document)


def test_the_schema_is_the_committed_one_and_describes_every_field() -> None:
    assert (ROOT / FILE).read_text() == text(), "make generate"
    for definition in schema()["$defs"].values():
        assert all(field["description"] for field in definition["properties"].values())


def test_an_unknown_field_of_another_version_is_no_error_of_the_schema() -> None:
    row = {"queue": "q", "quotas": [], "admittedJobs": 0, "waitingGpus": 0, "waiting": [], "new": 1}
    document = {"kind": "QueueRow", "asOf": 1.0, "rows": [row], "remarks": []}
    jsonschema.Draft202012Validator(schema()).validate(document)


def test_the_grammar_has_the_groups_that_there_are() -> None:
    assert set(overview_arguments.GROUPS) == set(GROUPS)
    assert {*overview_arguments.COMMANDS, "history", "why TYPE/NAME"} == set(KINDS)


def test_what_cannot_be_read_is_said_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_text(printed([{"kind": "TrainingJob", "metadata": {"name": 3}}]))
    assert shown(capsys, "list", "-A", "-f", str(file)) == (
        "no jobs\n1 objects cannot be read by this version.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("usage", "--by", "colour"), "--by colour: group by queue, user, namespace, phase, job"),
        (
            ("usage", "--since", "yore"),
            "--since yore: write a length such as 30d or 12h, or a day",
        ),
        (
            ("gantt", "--ahead", "2027-01-01"),
            "--ahead 2027-01-01: write a length such as 90m, 12h or 2d",
        ),
        (("gantt", "--since", "2099-01-01"), "--since 2099-01-01: this is not before now"),
        (
            ("gantt", "--save", "jobs.gif"),
            "--save jobs.gif: name a file that ends with .png or .html",
        ),
        (("queue", "none"), "there is no queue 'none', and no job waits in it"),
        (
            ("list", "--context", "here"),
            "--file reads no cluster: leave out --context and --kubeconfig",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(
    arguments: tuple[str, ...], message: str, dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *arguments, "-f", dump) == (2, f"drumline: {message}\n")


def test_a_job_that_is_not_there_and_a_file_that_is_none(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = refused(capsys, "why", "none", "-n", "team", "-f", dump)
    assert (code, message) == (1, "drumline: trainingjob 'none' not found in namespace 'team'\n")
    file = tmp_path / "bad.json"
    file.write_text("kind: List")
    code, message = refused(capsys, "list", "-f", str(file))
    assert (code, message.count("\n")) == (2, 1)
    assert message.startswith("drumline: no objects as kubectl get -o json prints them")
    assert refused(capsys, "list", "-f", "nowhere")[0] == 2


def test_what_is_no_job_is_named_as_kubectl_names_it(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "why", "pod/notebook", "-n", "team", "-f", dump).splitlines()
    assert lines[0] == "team/pods/notebook: NotCharged"
    assert "  charged to queue research" in lines
    assert refused(capsys, "why", "pod/none", "-n", "team", "-f", dump) == (
        1,
        "drumline: pod 'none' not found in namespace 'team'\n",
    )
    code, said = refused(capsys, "why", "secret/mine", "-n", "team", "-f", dump)
    assert code == 2
    assert said.startswith("drumline: secret/: of these types one is pod, job, jobset")


def test_a_job_of_kubernetes_is_read_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_text(printed([a_queue("research"), a_workload("Job", "train")]))
    for written in ("job/train", "jobs.batch/train"):
        text = shown(capsys, "why", written, "-n", "team", "-f", str(file))
        assert text.startswith("team/jobs/train: Waiting\n")


def test_foreign_pods_have_columns_of_their_own_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.json"
    file.write_text(printed([a_queue("research"), a_pod("chat", gpus=4)]))
    os.utime(file, (NOW, NOW))
    heads, row, _ = shown(capsys, "usage", "--by", "user,job", "-f", str(file)).splitlines()
    assert heads.split()[-3:] == ["FOREIGN", "NO", "JOBS"]
    assert row.split()[:5] == ["foreign", "pods", "team/pods/chat", "0", "0.3"]
    assert row.split()[-3:] == ["100.0", "%", "1"]
