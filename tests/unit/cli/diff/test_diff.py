"""Two jobs beside each other, from files as kubectl prints them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drumline_cli.program import main
from tests.unit.cli.manifests import AS_OF, a_manifest, a_running_status, as_yaml, moment

TRAINER = {"steps": 20_000, "globalBatchSize": 256, "sequenceLength": 2048}
ENVIRONMENT = [{"name": "LR", "value": "low"}]
TEMPLATE = {"image": "any:1", "command": ["python", "train.py"]}


@pytest.fixture
def dump(tmp_path: Path) -> str:
    file = tmp_path / "jobs.yaml"
    slower = a_running_status(step=1200, tokensPerSecond=401_000)
    manifests = (
        a_manifest(status=a_running_status(restarts=2)),
        a_manifest(name="halved", status=slower, nodes=2, trainer={**TRAINER, "seed": 7}),
        a_manifest(name="left", trainer=None, template={**TEMPLATE, "env": ENVIRONMENT}),
        a_manifest(
            name="right",
            trainer=None,
            template={**TEMPLATE, "env": [{"name": "LR", "value": "high"}]},
        ),
    )
    file.write_text(as_yaml(*manifests))
    os.utime(file, (moment(AS_OF), moment(AS_OF)))
    return str(file)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert main(["diff", *arguments]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_fields_that_differ_come_first_and_then_what_became_of_them(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "llama", "team/halved", "-f", dump)
    heads, *rest = lines
    assert heads == ["team/llama", "team/halved"]
    spec, outcome = rest[: rest.index([])], rest[rest.index([]) + 1 :]
    assert spec == [["nodes", "4", "2"], ["trainer.seed", "0", "7"]]
    assert outcome[0] == ["phase", "Running", "Running"]
    assert outcome[6] == ["loss", "2.4365", "2.4365"]
    assert outcome[7][0] == "tokens/s"
    assert outcome[1] == ["duration", *(2 * ["1", "h", "55", "min"])]
    assert ["restarts", "2", "0"] in outcome
    assert len(outcome) == 14


def test_entries_of_a_list_are_known_by_their_names(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, spec, *_ = printed(capsys, "left", "right", "-f", dump)
    assert spec == ["template.env.LR.value", "low", "high"]


def test_a_job_beside_itself_has_the_same_spec(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "llama", "llama", "-f", dump)[1] == ["the", "same", "spec"]


def test_json_has_every_row(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "llama", "halved", "-f", dump, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["right"]) == ("JobDifference", "team/halved")
    nodes = {"section": "spec", "field": "nodes", "left": "4", "right": "2"}
    assert nodes in document["rows"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("llama", "gone"), "no such job found"),
        (("llama", "other/halved"), "no such job found"),
    ],
)
def test_a_job_that_is_not_there_is_named(
    dump: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], problem: str
) -> None:
    assert main(["diff", *arguments, "-f", dump]) == 2
    assert problem in capsys.readouterr().err


def test_standard_input_cannot_be_read_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a", "b", "-f", "-"]) == 2
    assert "name a file" in capsys.readouterr().err
