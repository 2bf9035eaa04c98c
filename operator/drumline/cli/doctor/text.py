"""The findings for a terminal: a line each, and below each that is not well what mends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from drumline.cli.doctor.results import CheckFailed, Finding, Passed, Undecided, Warned
from drumline_trainer.contract import plain

_MARKS: Final = {Passed: "ok", Warned: "warn", CheckFailed: "FAIL", Undecided: "?"}
_COLOURS: Final = {Passed: "32", Warned: "33", CheckFailed: "31", Undecided: "34"}
_MARK_WIDTH: Final = 4


def render(findings: Sequence[Finding], *, colours: bool) -> str:
    """All findings, ending with a line that counts them.

    Args:
        findings: What to render.
        colours: Whether the reader's terminal understands them.
    """
    return "\n".join((*_lines(findings, colours=colours), "", _sum(findings))) + "\n"


def _lines(findings: Iterable[Finding], *, colours: bool) -> Iterator[str]:
    names = [finding.check for finding in findings]
    width = max(map(len, names), default=0)
    for finding in findings:
        kind = type(finding.result)
        mark = _MARKS[kind].ljust(_MARK_WIDTH)
        if colours:
            mark = f"\033[{_COLOURS[kind]}m{mark}\033[0m"
        yield f"{mark}  {finding.check.ljust(width)}  {plain(finding.result.message)}"
        if not isinstance(finding.result, Passed):
            yield f"{' ' * (_MARK_WIDTH + width + 4)}do: {plain(finding.result.fix)}"


def _sum(findings: Iterable[Finding]) -> str:
    counts = Counter(type(finding.result) for finding in findings)
    words = {Passed: "well", Warned: "to look at", CheckFailed: "failed", Undecided: "not known"}
    return ", ".join(f"{counts[kind]} {word}" for kind, word in words.items())
