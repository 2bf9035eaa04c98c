"""A report as JSON for programs. Its field names are an interface: they stay as they are."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from drumline.cli.report.model import JobReport

REPORT_KEYS: Final = {"health": "mood", "summary": "sentence", "timeline": "life"}
INCIDENT_KEYS: Final = {"root_cause": "culprit", "detection": "found"}
"""By field of the model: its name here, where that is another."""


def as_json(report: JobReport) -> str:
    """The report as a JSON object, ending with a newline."""
    document = _renamed(asdict(report), REPORT_KEYS)
    document["incidents"] = [_renamed(item, INCIDENT_KEYS) for item in document["incidents"]]
    document["goodput"] = report.goodput
    return json.dumps(document, indent=2) + "\n"


def _renamed(fields: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    return {keys.get(name, name): value for name, value in fields.items()}
