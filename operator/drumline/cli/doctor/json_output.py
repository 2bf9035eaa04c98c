"""The findings for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from drumline.cli.doctor.results import CheckFailed, Finding, Passed, Undecided, Warned

VERDICTS: Final = {Passed: "ok", Warned: "warning", CheckFailed: "failed", Undecided: "unknown"}


def as_json(findings: Iterable[Finding]) -> str:
    """`{"findings": [{"check", "verdict", "message", "fix"}]}`; no `fix` where all is well."""
    document = {"findings": [_row(finding) for finding in findings]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _row(finding: Finding) -> dict[str, Any]:
    result = finding.result
    row = {"check": finding.check, "verdict": VERDICTS[type(result)], "message": result.message}
    return row if isinstance(result, Passed) else {**row, "fix": result.fix}
