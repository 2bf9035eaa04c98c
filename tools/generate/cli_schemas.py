"""The JSON Schema of the commands that print one document each, from the documents' own classes.

`python -m tools.generate.cli_schemas` writes docs/cli-reports.schema.json. The rows of `drumline
list` and its neighbours have docs/cli-output.schema.json, which `overview.json_output` writes.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import msgspec

from drumline.overview.rows import OverrideRow
from drumline_cli.decide.alternatives import Alternative
from drumline_cli.decide.command import DecidedCycle
from drumline_cli.decide.job_decisions import JobDecision, NewNodes, NodesNeeded
from drumline_cli.diff.differences import Difference, JobDifference
from drumline_cli.doctor.json_output import DoctorFindings, FindingRow
from drumline_cli.overview.json_output import attribute_sentences
from drumline_cli.replay.outcomes import ChangedJob
from drumline_cli.replay.upgrade import CapturedCycle, UpgradeCheck
from drumline_cli.report.model import (
    EventRow,
    GpuSecondsLoss,
    GpuSecondsShare,
    IncidentReport,
    JobReport,
    RecoveryStage,
    RestartBudget,
    SummaryRow,
    TimelineSpan,
)
from drumline_cli.report.rendering import INCIDENT_KEYS, REPORT_KEYS
from drumline_contract import ComputePoint, StepPoint
from drumline_contract.prompt_answers import ContinuedPrompts

Json = dict[str, Any]

FILE: Final = Path("docs/cli-reports.schema.json")
DOCUMENTS: Final[Mapping[str, type]] = {
    "doctor": DoctorFindings,
    "report": JobReport,
    "decide": DecidedCycle,
    "diff": JobDifference,
    "upgrade --check": UpgradeCheck,
}
"""By command: what it prints with `-o json`."""
_PARTS: Final[tuple[type, ...]] = (
    FindingRow,
    *(IncidentReport, RecoveryStage, GpuSecondsShare, RestartBudget, TimelineSpan),
    *(EventRow, SummaryRow, GpuSecondsLoss, StepPoint, ComputePoint, ContinuedPrompts),
    *(JobDecision, NodesNeeded, NewNodes, Alternative, OverrideRow),
    Difference,
    *(CapturedCycle, ChangedJob),
)
_KINDS: Final = {kind.__name__: kind for kind in (*DOCUMENTS.values(), *_PARTS)}


def schema() -> Json:
    """JSON Schema (2020-12) of the output of every command of `DOCUMENTS`."""
    references, definitions = msgspec.json.schema_components(
        DOCUMENTS.values(), ref_template="#/$defs/{name}"
    )
    for name, definition in definitions.items():
        if kind := _KINDS.get(name):
            _describe(definition, kind)
    _as_printed(definitions["JobReport"], REPORT_KEYS)
    _as_printed(definitions["IncidentReport"], INCIDENT_KEYS)
    _add_goodput(definitions["JobReport"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Output of drumline {', '.join(DOCUMENTS)} with -o json",
        "description": "Times are seconds since the epoch. Fields are added, none is renamed or"
        " removed.",
        "oneOf": [
            {**reference, "description": f"drumline {command} -o json"}
            for command, reference in zip(DOCUMENTS, references, strict=True)
        ],
        "$defs": definitions,
    }


def _describe(definition: Json, kind: type[Any]) -> None:
    """Put the sentences about the fields to them; what a dataclass has is always printed."""
    summary, sentences = attribute_sentences(kind)
    definition["description"] = summary
    if issubclass(kind, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    else:
        sentences |= _sentences_below(kind)
        names = {name: name for name in kind.__annotations__}
        definition["required"] = list(names)
    for name, written in names.items():
        place = definition["properties"][written]
        place["description"] = sentences[name]
        place.pop("default", None)


def _sentences_below(kind: type) -> dict[str, str]:
    """By field: the string below it in the class."""
    (body,) = ast.parse(dedent(inspect.getsource(kind))).body
    if not isinstance(body, ast.ClassDef):
        return {}
    return {
        field.target.id: " ".join(str(ast.literal_eval(below.value)).split())
        for field, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
    }


def _as_printed(definition: Json, keys: Mapping[str, str]) -> None:
    """Rename the fields whose names in JSON are others."""
    definition["properties"] = {
        keys.get(name, name): place for name, place in definition["properties"].items()
    }
    definition["required"] = [keys.get(name, name) for name in definition["required"]]


def _add_goodput(definition: Json) -> None:
    """It is computed, so it is no field of the class."""
    definition["properties"]["goodput"] = {
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "description": " ".join((inspect.getdoc(JobReport.goodput) or "").split()),
    }
    definition["required"].append("goodput")


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
