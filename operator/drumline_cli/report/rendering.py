"""A report in the format that was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from drumline_cli.report import html, text
from drumline_cli.report.model import JobReport

REPORT_KEYS: Final = {"health": "mood", "summary": "sentence", "timeline": "life"}
INCIDENT_KEYS: Final = {"root_cause": "culprit", "detection": "found"}
"""Names of fields that differ from the model, by field."""


def render(report: JobReport, *, output: str, environment: Mapping[str, str]) -> str:
    """Return the report as `html`, `json`, or text with colors in a terminal.

    Args:
        report: the report.
        output: `html`, `json` or `text`.
        environment: environment variables.
    """
    match output:
        case "html":
            return html.render(report)
        case "json":
            return as_json(report)
        case _:
            colours = sys.stdout.isatty() and "NO_COLOR" not in environment
            return text.render(report, colours=colours)


def as_json(report: JobReport) -> str:
    """Return a JSON object, ending with a newline. Its field names are an interface: they stay."""
    document = _renamed(asdict(report), REPORT_KEYS)
    document["incidents"] = [_renamed(item, INCIDENT_KEYS) for item in document["incidents"]]
    document["goodput"] = report.goodput
    return json.dumps(document, indent=2) + "\n"


def _renamed(fields: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    return {keys.get(name, name): value for name, value in fields.items()}
