"""The findings for programs. Their field names are an interface: they stay as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from drumline_cli.doctor.results import CheckFailed, Finding, Passed, Undecided, Warned

Verdict = Literal["ok", "warning", "failed", "unknown"]
VERDICTS: Final[dict[type, Verdict]] = {
    Passed: "ok",
    Warned: "warning",
    CheckFailed: "failed",
    Undecided: "unknown",
}


class FindingRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One check.

    Attributes:
        check: its name.
        verdict: failed: some jobs will not run as they should; unknown: it could not be looked at.
        message: what was seen, with figures and names.
        fix: what to do; absent where all is well.
    """

    check: str
    verdict: Verdict
    message: str
    fix: str = ""


class DoctorFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of `drumline doctor`.

    Attributes:
        findings: a row for each check.
    """

    findings: tuple[FindingRow, ...]


def as_json(findings: Iterable[Finding]) -> str:
    """Return the findings as one JSON object that ends with a newline."""
    document = DoctorFindings(findings=tuple(_row(finding) for finding in findings))
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _row(finding: Finding) -> FindingRow:
    result = finding.result
    return FindingRow(
        check=finding.check,
        verdict=VERDICTS[type(result)],
        message=result.message,
        fix="" if isinstance(result, Passed) else result.fix,
    )
