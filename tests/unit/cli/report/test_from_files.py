from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from drumline_cli.errors import BadInput
from drumline_cli.report import from_files
from drumline_cli.report.job_input import JobInput
from tests.unit.cli.manifests import a_manifest, an_event, as_yaml


def read(folder: Path, text: str, **wanted: str) -> JobInput:
    file = folder / "job.yaml"
    file.write_text(text)
    os.utime(file, (1000.0, 1000.0))
    return from_files.read([str(file)], job=wanted.get("job"), namespace=wanted.get("namespace"))


def refusal(folder: Path, text: str, **wanted: str) -> str:
    with pytest.raises(BadInput) as caught:
        read(folder, text, **wanted)
    return str(caught.value).removeprefix(f"{folder}/")


def test_a_file_is_read_as_of_the_moment_it_was_written(tmp_path: Path) -> None:
    job_input = read(tmp_path, as_yaml(a_manifest(), an_event()))
    assert (job_input.namespace, job_input.name, job_input.as_of) == ("team", "llama", 1000.0)
    assert [event.reason for event in job_input.events] == ["MemberReplaced"]


def test_a_list_holds_its_items_and_json_is_yaml_too(tmp_path: Path) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [a_manifest(), an_event()]}
    job_input = read(tmp_path, json.dumps(listed, indent=4))
    assert (job_input.name, len(job_input.events)) == ("llama", 1)


def test_several_files_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "job").write_text(as_yaml(a_manifest()))
    (tmp_path / "events").write_text(as_yaml({"kind": "EventList", "items": [an_event()]}))
    names = [str(tmp_path / "job"), str(tmp_path / "events")]
    assert len(from_files.read(names, job=None, namespace=None).events) == 1


def test_times_without_quotes_stay_text(tmp_path: Path) -> None:
    text = as_yaml(a_manifest()).replace("'2026-11-21T05:14:02Z'", "2026-11-21T05:14:02Z")
    status = read(tmp_path, text).job.status
    assert status is not None
    assert status.admitted_at == "2026-11-21T05:14:02Z"


def test_standard_input_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("- 1\n"))
    with pytest.raises(BadInput, match=r"line 1.*API"):
        from_files.read(["-"], job=None, namespace=None)


@pytest.mark.parametrize(
    "event",
    [
        an_event(regarding={"kind": "Pod", "name": "llama", "namespace": "team"}),
        an_event(regarding={"kind": "TrainingJob", "name": "other", "namespace": "team"}),
        an_event(regarding={"kind": "TrainingJob", "name": "llama", "namespace": "elsewhere"}),
        an_event(
            regarding={"kind": "TrainingJob", "name": "llama", "namespace": "team", "uid": "older"}
        ),
    ],
)
def test_events_about_other_objects_are_left_out(tmp_path: Path, event: Any) -> None:
    assert read(tmp_path, as_yaml(a_manifest(), event)).events == ()


def test_the_older_spelling_of_an_event_is_read_too(tmp_path: Path) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "llama.17", "namespace": "team"},
        "involvedObject": {"kind": "TrainingJob", "name": "llama", "namespace": "team"},
        "reason": "Placed",
        "message": "on 4 nodes",
        "type": "Normal",
        "count": 3,
        "lastTimestamp": "1970-01-01T00:00:10Z",
    }
    (line,) = read(tmp_path, as_yaml(a_manifest(), event)).events
    assert (line.at, line.warning, line.note, line.times) == (10.0, False, "on 4 nodes", 3)


TWO = as_yaml(a_manifest(), a_manifest(name="gpt"))


def test_a_job_of_several_is_chosen_by_name(tmp_path: Path) -> None:
    assert read(tmp_path, TWO, job="gpt", namespace="team").name == "gpt"


@pytest.mark.parametrize(
    ("text", "wanted", "message"),
    [
        (TWO, {}, "job.yaml: several jobs match; name one of them: team/gpt, team/llama"),
        (TWO, {"job": "bert"}, "job.yaml: no such job found, but team/gpt, team/llama"),
        (TWO, {"namespace": "b"}, "job.yaml: no such job found, but team/gpt, team/llama"),
        ("", {}, "job.yaml: the file is empty"),
        ("kind: Pod", {}, "job.yaml: no TrainingJob of drumline.dev found, but Pod"),
        ("a: 1\nb: [1\nc: 2", {}, "job.yaml, line 3: not YAML: "),
        ("a: 1\n---\n- 2\n", {}, "job.yaml, line 3: an API object must be a mapping"),
        ("kind: List\nitems:\n- {}\n- 3", {}, "job.yaml, line 4: items: each item must be"),
        ("a: \x00", {}, "job.yaml: not YAML: "),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    tmp_path: Path, text: str, wanted: dict[str, str], message: str
) -> None:
    assert refusal(tmp_path, text, **wanted).startswith(message)


@pytest.mark.parametrize(
    ("line", "wrong", "field"),
    [
        ("  nodes: 4", "  nodes: four", "spec.nodes"),
        ("  step: 4210", "  step: [1, 2]", "status.step"),
        ("    - '5'", "    - {a: 1}", "status.assignment.nodes[2]"),
        ("  name: llama", "  name: [1]", "metadata.name"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(
    tmp_path: Path, line: str, wrong: str, field: str
) -> None:
    text = as_yaml(a_manifest())
    number = text.splitlines().index(line) + 1
    job_input = refusal(tmp_path, text.replace(line, wrong, 1))
    assert job_input.startswith(f"job.yaml, line {number}: {field}: ")


def test_a_missing_field_is_blamed_on_what_should_hold_it(tmp_path: Path) -> None:
    text = as_yaml(a_manifest()).replace("  queue: research\n", "")
    number = text.splitlines().index("spec:") + 2
    assert refusal(tmp_path, text) == f"job.yaml, line {number}: spec.queue: Field required"


def test_the_line_counts_from_the_top_of_the_file(tmp_path: Path) -> None:
    text = as_yaml(an_event(), a_manifest(nodes="four"))
    number = text.splitlines().index("  nodes: four") + 1
    assert refusal(tmp_path, text).startswith(f"job.yaml, line {number}: spec.nodes: ")


@pytest.mark.parametrize(
    ("contents", "message"),
    [(None, "No such file or directory"), (b"\xff\xfe", "not UTF-8: invalid start byte at byte 0")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, contents: bytes | None, message: str
) -> None:
    file = tmp_path / "job.yaml"
    if contents is not None:
        file.write_bytes(contents)
    with pytest.raises(BadInput) as caught:
        from_files.read([str(file)], job=None, namespace=None)
    assert str(caught.value) == f"{file}: {message}"
