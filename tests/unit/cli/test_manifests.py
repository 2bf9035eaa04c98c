"""Files with objects: what cannot be read is an error with its file, never a crash."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from drumline_cli.program import main

DEEP = 100_000
JOB = {
    "apiVersion": "drumline.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "a"},
    "spec": {"queue": "q", "gpusPerNode": 1, "trainer": {"steps": 5}},
}
READERS = (("decide", "-f"), ("report", "a", "-f"), ("restore",), ("simulate",))


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * DEEP,
        '{"a":' * DEEP,
        json.dumps({**JOB, "spec": {"trainer": json.loads("[" * 400 + "]" * 400)}}),
        "a: &a [*a]",
    ],
    ids=["yaml", "open json", "json", "alias"],
)
def test_deep_files_are_refused_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Sequence[str], text: str
) -> None:
    file = tmp_path / "deep"
    file.write_text(text)
    assert main([*command, str(file)]) == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        # none of these is YAML, which is how the line of an error is found
        json.dumps({**JOB, "spec": {"queue": "\ud800"}}),
        json.dumps({**JOB, "metadata": {"name": "a", "labels": {"k" * 2000: 5}}}),
    ],
    ids=["surrogate", "long key"],
)
def test_an_error_in_json_that_is_no_yaml_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "job.json"
    file.write_text(text)
    assert main(["decide", "-f", str(file)]) == 1
    assert f"{file}: default/a: " in capsys.readouterr().out


def test_a_trace_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "/dev/zero"]) == 2
    assert "/dev/zero: longer than" in capsys.readouterr().err
