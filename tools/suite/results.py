"""What a part came to: its counts and the duration of each of its tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

from tools.suite.parts import Part
from tools.suite.selection import ESSENTIAL

NO_TESTS = 5
"""Exit code of pytest."""


@dataclass(frozen=True, slots=True)
class Duration:
    """One test with its setup and teardown; a fixture of a module is part of its first test."""

    seconds: float
    test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One part, ended."""

    part: Part
    minutes: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    obstacle: str = ""
    """Why it did not run."""
    durations: tuple[Duration, ...] = ()
    failures: tuple[str, ...] = ()
    """Each failed test with the first line of what it says."""

    @property
    def over_budget(self) -> bool:
        """Whether it took longer than a quiet machine needs: a warning, never a failure."""
        return self.minutes > self.part.budget_minutes

    @property
    def summary(self) -> str:
        """One line."""
        if self.obstacle:
            return f"{self.part.name}: skipped: {self.obstacle}"
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        time = f"{self.minutes:.1f} of {self.part.budget_minutes:g} min"
        late = " OVER BUDGET" if self.over_budget else ""
        return f"{self.part.name}: {counts}; {time}{late}"


def result_of(part: Part, *, code: int, minutes: float, results: Path) -> Result:
    """From the exit code of a command, or from pytest's file of results."""
    result = Result(part=part, minutes=minutes)
    if part.command:
        failed = min(code, part.checks) if code >= 0 else part.checks
        return replace(result, passed=part.checks - failed, failed=failed)
    try:
        suite = ET.parse(results).getroot().find("testsuite")  # noqa: S314 - as above
    except (OSError, ET.ParseError):
        suite = None
    if suite is None:  # pytest itself was killed
        return replace(result, failed=1)
    total, failures, errors, skipped = (
        int(suite.get(count, "0")) for count in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    passed = max(0, total - failed - skipped)
    if code == NO_TESTS and part.choice != ESSENTIAL:
        code = 0  # no test of this part is in the slice
    if code != 0 and not failed:  # of a warning or an interrupt, say
        failed = 1
    durations = tuple(
        Duration(float(case.get("time", "0")), _name(case)) for case in suite.iter("testcase")
    )
    failures = tuple(
        f"{_name(case)}: {(problem.get('message') or '').partition(chr(10))[0][:200]}"
        for case in suite.iter("testcase")
        for problem in (*case.iter("failure"), *case.iter("error"))
    )
    return replace(
        result,
        passed=passed,
        failed=failed,
        skipped=skipped,
        durations=durations,
        failures=failures,
    )


def _name(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"
