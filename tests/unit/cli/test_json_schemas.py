"""What commands print with `-o json` is what docs/cli-reports.schema.json says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from drumline_cli.doctor.json_output import as_json
from drumline_cli.doctor.results import CheckFailed, Finding, Passed
from drumline_cli.program import main
from tests.unit.cli.decide.test_command import SITE, a_job, captured, written
from tests.unit.cli.manifests import a_manifest, a_running_status, an_event, an_incident, as_yaml
from tools.generate import cli_schemas as json_schemas
from tools.generate.cli_schemas import DOCUMENTS, schema

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]


def printed(folder: Path, capsys: pytest.CaptureFixture[str], command: str) -> str:
    """What the command prints with `-o json` of objects that fill as much as they can."""
    status = a_running_status(
        lastIncident=an_incident(),
        restarts=2,
        gpuSeconds={"until": "2026-11-21T06:55:12Z", "productive": 900, "starting": 75},
    )
    jobs = folder / "jobs.yaml"
    jobs.write_text(
        as_yaml(
            a_manifest(status=status),
            a_manifest(name="other", nodes=2, trainer=None, template={"image": "any:1"}),
            an_event(),
        )
    )
    capture = captured(folder)
    # Its nodes are cordoned now, so that a job fares otherwise.
    capture.write_text(
        capture.read_text().replace('"unschedulable": false', '"unschedulable": true')
    )
    site = written(folder, *SITE, a_job("first", nodes=2), a_job("big", nodes=3))
    arguments = {
        "report": ("report", "llama", "-f", str(jobs)),
        "diff": ("diff", "llama", "other", "-f", str(jobs)),
        "decide": ("decide", "-f", site),
        "upgrade --check": ("upgrade", "--check", str(capture)),
    }
    main([*arguments[command], "-o", "json"])
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def findings(_folder: Path, _capsys: pytest.CaptureFixture[str], _command: str) -> str:
    """Doctor asks a cluster: its rows are printed here as the command prints them."""
    return as_json(
        (
            Finding(check="Clocks", result=Passed(message="4 nodes agree")),
            Finding(check="GPUs", result=CheckFailed(message="n1 has none", fix="install it")),
        )
    )


PRINTED: dict[str, Callable[[Path, pytest.CaptureFixture[str], str], str]] = {
    "doctor": findings,
    **dict.fromkeys(("report", "diff", "decide", "upgrade --check"), printed),
}


def closed() -> Json:
    """The schema where a field that it does not describe is an error."""
    whole = schema()
    for definition in whole["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    return whole


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_field_that_a_command_prints_is_described(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(PRINTED[command](tmp_path, capsys, command))
    jsonschema.Draft202012Validator(schema()).validate(document)
    alone = {"$ref": f"#/$defs/{DOCUMENTS[command].__name__}", "$defs": closed()["$defs"]}
    jsonschema.Draft202012Validator(alone).validate(document)
    lists = [value for value in document.values() if isinstance(value, list)]
    assert any(lists), "an empty document says nothing about its rows"


@pytest.mark.parametrize("command", ["report", "diff", "decide", "upgrade --check"])
def test_a_document_without_one_of_its_fields_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(printed(tmp_path, capsys, command))
    for name in document:
        shorter = {key: value for key, value in document.items() if key != name}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema()).validate(shorter)


def test_the_upgrade_names_what_changed_in_json_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(printed(tmp_path, capsys, "upgrade --check"))
    (cycle,) = document["cycles"]
    assert (document["kind"], cycle["at"], cycle["waitingJobs"]) == ("UpgradeCheck", 5.0, 2)
    assert cycle["changes"][0]["job"] == "team/first"
    assert cycle["changes"][0]["before"].startswith("starts on n1, n2 of ")
    assert cycle["changes"][0]["now"].startswith("waits (")


def test_the_schema_is_the_committed_one_and_describes_every_field() -> None:
    assert (ROOT / json_schemas.FILE).read_text() == json_schemas.text(), "make generate"
    for definition in schema()["$defs"].values():
        assert all(field["description"] for field in definition.get("properties", {}).values())


def test_a_report_is_described_by_the_names_that_it_prints() -> None:
    properties = schema()["$defs"]["JobReport"]["properties"]
    assert properties["mood"]["description"] == "Health of the job."
    assert properties["incidents"]["description"] == "Newest first."
    assert "timeline" not in properties
