"""list, queue, why, nodes, share, usage and gantt on files, as people call them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from drumline.overview.usage import GROUPS
from drumline_cli import overview_arguments
from drumline_cli.overview.json_output import FILE, KINDS, schema, text
from drumline_cli.program import main
from tests.texts import Golden, missing
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


def written(folder: Path, objects: list[Any]) -> str:
    """Return a file with these objects as of NOW."""
    file = folder / "all.json"
    file.write_text(printed(objects))
    os.utime(file, (NOW, NOW))
    return str(file)


@pytest.fixture
def dump(tmp_path: Path) -> str:
    return written(tmp_path, OBJECTS)


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


SURPLUS = {
    "gpuPool": "gpus",
    "nodes": ["node-1", "node-2"],
    "surplus": {"gpuPool": "spot", "indices": [1]},
}
SPENT = {
    "phase": "Pending",
    "reason": "BudgetSpent",
    "message": "110 % of 100 GPU-hours are spent",
}
BUDGETS = [
    a_queue(
        "research",
        budget={"gpuHours": 100, "windowDays": 30},
        status={"budget": {"spentGpuHours": 110, "until": at(-60)}},
    ),
    a_job("big", status=SPENT),
    a_job("mixed", spec={"nodes": 2}, status={**running(), "assignment": SURPLUS}),
]
FOREIGN = [a_queue("research"), a_pod("chat", gpus=4)]
EVIDENCE = [
    {"node": "node-1", "message": "Slow (by 20 %) for jobs in team"},
    {
        "node": "node-2",
        "message": "Slow (by 20 %) for jobs in team; Slow (by 30 %) for jobs in vision",
        "quarantinedAt": at(-3600),
    },
]
SLOW_NODES = [
    a_pool() | {"status": {"nodeHealth": EVIDENCE}},
    *(a_node(f"node-{number}") for number in (1, 2)),
    a_job("llama", status=running()),
]
TABLES: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    **{name.replace(" TYPE/NAME", "-pod"): (OBJECTS, words) for name, words in COMMANDS.items()},
    "list-of-namespace": (OBJECTS, ("list", "-n", "elsewhere")),
    "list-unreadable": (
        [{"kind": "TrainingJob", "metadata": {"name": 3}}],
        ("list", "-A"),
    ),
    "queue-with-budget": (BUDGETS, ("queue",)),
    "why-budget": (BUDGETS, ("why", "big", "-n", "team")),
    "why-surplus": (BUDGETS, ("why", "mixed", "-n", "team")),
    "usage-foreign": (FOREIGN, ("usage", "--by", "user,job")),
    "nodes-slow": (SLOW_NODES, ("nodes",)),
    "gantt-day": (OBJECTS, ("gantt", "-A")),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_text_of_each_command(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    objects, words = TABLES[table]
    golden(f"{table}.txt", shown(capsys, *words, "-f", written(tmp_path, objects)))


def test_jobs_over_time_are_saved(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert {*overview_arguments.ROWS, "history", "why TYPE/NAME"} == set(KINDS)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("usage --by colour", "colour queue user namespace phase job"),
        ("usage --since yore", "--since yore 30d 12h"),
        ("gantt --ahead 2027-01-01", "--ahead 2027-01-01 90m 12h 2d"),
        ("gantt --since 2099-01-01", "--since 2099-01-01"),
        ("gantt --save jobs.gif", "--save jobs.gif .png .html"),
        ("queue none", "'none'"),
        ("list --context here", "--file --context --kubeconfig"),
    ],
)
def test_what_cannot_be_used_is_refused(
    words: str, named: str, dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = refused(capsys, *words.split(), "-f", dump)
    assert (code, message.count("\n")) == (2, 1)
    assert not missing(message, *named.split())


def test_a_job_that_is_not_there_and_a_file_that_is_none(
    dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, kind in (("none", "trainingjob"), ("pod/none", "pod")):
        code, message = refused(capsys, "why", name, "-n", "team", "-f", dump)
        assert code == 1
        assert not missing(message, kind, "'none'", "'team'")
    code, message = refused(capsys, "why", "secret/mine", "-n", "team", "-f", dump)
    assert code == 2
    assert not missing(message, "secret/", "pod, job, jobset")
    file = tmp_path / "bad.json"
    file.write_text("kind: List")
    code, message = refused(capsys, "list", "-f", str(file))
    assert (code, message.count("\n")) == (2, 1)
    assert not missing(message, "kubectl get -o json")
    assert refused(capsys, "list", "-f", "nowhere")[0] == 2


def test_a_job_of_kubernetes_is_read_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, [a_queue("research"), a_workload("Job", "train")])
    for name in ("job/train", "jobs.batch/train"):
        card = shown(capsys, "why", name, "-n", "team", "-f", file)
        assert card.startswith("team/jobs/train: Waiting\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "-n", "nosuch"), "no jobs in namespace nosuch\n"),
        (("list", "-n", "team", "-q", "nosuch"), "no jobs of queue nosuch in namespace team\n"),
        (("list", "-A", "-q", "nosuch"), "no jobs of queue nosuch\n"),
    ],
)
def test_an_empty_list_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main([*words, "-f", written(tmp_path, OBJECTS)]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nodes", "--pool", "nosuch"), "pool 'nosuch' does not exist; pools: gpus\n"),
        (("queue", "nosuch"), "queue 'nosuch' does not exist; queues: research\n"),
    ],
)
def test_a_pool_or_queue_that_does_not_exist_is_not_an_empty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main([*words, "-f", written(tmp_path, OBJECTS)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [("", "the file is empty"), ("kind: List", "not the output of kubectl")]
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "wrong"
    file.write_text(text)
    assert main(["list", "-f", written(tmp_path, OBJECTS), "-f", str(file)]) == 2
    assert f"{file}: {said}" in capsys.readouterr().err


def test_a_reason_stands_once_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = a_job("lost", status={"phase": "Pending", "reason": "QueueNotFound"})
    assert main(["list", "-A", "-f", written(tmp_path, [job])]) == 0
    assert capsys.readouterr().out.count("QueueNotFound") == 1
