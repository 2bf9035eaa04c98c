"""Running one check, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from subprocess import TimeoutExpired
from typing import Generic, TypeVar

from tools.bench.report import Row

MAX_WORDS = 1000
PASSED, FAILED, NOT_RUN, CUT = "passed", "failed", "not run", "cut"
BenchT = TypeVar("BenchT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[BenchT]):
    """One check; it fails by an exception, or by a row that misses its goal."""

    summary: str
    run: Callable[[BenchT], Iterator[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one check."""

    name: str
    summary: str
    outcome: str
    """PASSED, FAILED, CUT or NOT_RUN."""
    seconds: float = 0.0
    words: str = ""
    rows: tuple[Row, ...] = ()

    def __str__(self) -> str:
        """Some lines of the report."""
        lines = [f"{self.outcome:8} {self.name:12} {self.seconds:6.1f} s  {self.summary}"]
        for row in self.rows:
            mark = {None: "", True: "met", False: "MISSED"}[row.met]
            line = f"{row.name}: {row.value:.4g} {row.unit}  {row.goal}  {mark}"
            lines.append(f"{'':11}{line.rstrip()}")
        return "\n".join([*lines, f"{'':11}{self.words}"] if self.words else lines)


def outcome_of(name: str, check: Check[BenchT], bench: BenchT) -> Outcome:
    """Run it to its end, whatever happens on the way."""
    rows: list[Row] = []
    words, began = "", time.monotonic()
    try:
        rows.extend(check.run(bench))
    except TimeoutExpired as error:
        words = f"a run did not end within {error.timeout:.0f} s"
    except Exception as error:  # noqa: BLE001 - every check has its verdict
        words = f"{type(error).__name__}: {error}"[:MAX_WORDS]
    missed = [row.name for row in rows if row.met is False]
    if missed and not words:
        words = f"missed: {'; '.join(missed)}"
    return Outcome(
        name=name,
        summary=check.summary,
        outcome=FAILED if words else PASSED,
        seconds=round(time.monotonic() - began, 1),
        words=words,
        rows=tuple(rows),
    )
