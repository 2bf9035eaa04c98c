"""A report in the format that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from drumline.cli.report import html, text
from drumline.cli.report.json_output import as_json
from drumline.cli.report.model import JobReport


def render(report: JobReport, *, output: str, environment: Mapping[str, str]) -> str:
    """The report as `html`, `json`, or text with colours where a terminal shows them."""
    match output:
        case "html":
            return html.render(report)
        case "json":
            return as_json(report)
        case _:
            colours = sys.stdout.isatty() and "NO_COLOR" not in environment
            return text.render(report, colours=colours)
