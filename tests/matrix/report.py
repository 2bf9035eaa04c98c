"""The matrix for programs (build/bench/matrix.json) and for people (docs/kill-matrix.md).

On the stand-in for NCCL: build/bench/matrix-nccl.json and docs/kill-matrix-nccl.md.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.matrix.cells import OF_DEVICES, Cell, Fault, Moment, Role
from tests.matrix.judge import Result, Verdict
from tests.matrix.strikes import Backend
from tools.bench.report import FOLDER, machine

DOCS = Path(__file__).parents[2] / "docs"
_TITLES = {Backend.GLOO: "Kill matrix", Backend.NCCL: "Kill matrix on the stand-in for NCCL"}
_TARGETS = {Backend.GLOO: "matrix", Backend.NCCL: "nccl"}
_OVER = {
    Backend.GLOO: "Gloo",
    Backend.NCCL: "a [stand-in for NCCL](decisions/0030-nccl-stand-in.md)",
}
_BESIDE = {
    Backend.GLOO: "The same cells [on the stand-in for NCCL](kill-matrix-nccl.md).\n",
    Backend.NCCL: (
        "The undisturbed run is [Gloo's](kill-matrix.md): the stand-in's sums are Gloo's own, but"
        " a lost peer fails no wait, and an abort leaves partial results. Only here a kernel is"
        " stuck or a link is lost. With a lost link no rank is behind the others: what ends the"
        " wait is the job's `hangTimeoutSeconds`, 10 s in these cells.\n"
    ),
}

INTRODUCTION = (
    "Every fault at every moment in every role, on processes: two pods with two ranks each, real"
    " agents, the bundled trainer over {over}, and a stand-in for the operator that makes new"
    " generations. A cell is a gang of its own that trains {steps} steps and is hit once. It is"
    " green when the losses of all steps and the final weights equal those of the undisturbed run"
    " **bit for bit**, processes that were not hit kept their PIDs (but where ranks connect to each"
    " other: those that Gloo does not let go are started again), the incident ledger names the"
    " culprit and its phases add up to the wall clock, and whatever was replaced trains no further"
    " (`tests/matrix/judge.py` has all promises). Written by `{command}`, never by hand.\n"
)
ROLE_SIGNS = {
    Role.RANK_0: "0",
    Role.NEIGHBOUR: "n",
    Role.REMOTE: "r",
    Role.TWO: "2",
    Role.LEADER: "L",
    Role.FOLLOWER: "F",
    Role.ALL: "A",
}
_FAILS = (Fault.NOT_FINITE, Fault.SAME_ERROR, Fault.ACKNOWLEDGED_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the results were measured with."""

    date: str
    cells: int
    """All there are; fewer results are of a run that is not over, or was stopped."""
    steps: int
    seconds: float
    backend: Backend = Backend.GLOO

    @property
    def command(self) -> str:
        """What runs all of it."""
        return f"make test-all WHAT={_TARGETS[self.backend]}"


def json_file(backend: Backend) -> Path:
    """Of the programs."""
    return FOLDER / ("matrix.json" if backend is Backend.GLOO else f"matrix-{backend}.json")


def page(backend: Backend) -> Path:
    """Of the people."""
    return DOCS / ("kill-matrix.md" if backend is Backend.GLOO else f"kill-matrix-{backend}.md")


def kept(backend: Backend) -> tuple[list[Result], float]:
    """What the file says: the results, and how many seconds they took; nothing without one."""
    file = json_file(backend)
    if not file.exists():
        return [], 0.0
    whole = json.loads(file.read_text())
    return [_result(entry) for entry in whole["cells"]], whole["seconds"]


def publish(results: Sequence[Result], run: Run) -> None:
    """Write both."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    json_file(run.backend).write_text(as_json(results, run))
    page(run.backend).write_text(as_page(results, run))


def as_json(results: Sequence[Result], run: Run) -> str:
    """Everything."""
    whole = {
        "command": run.command,
        "date": run.date,
        "machine": machine(),
        "seconds": round(run.seconds, 1),
        "counts": counts(results),
        "cells": [_entry(result) for result in results],
    }
    return json.dumps(whole, indent=1) + "\n"


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many cells of each verdict."""
    totals = dict.fromkeys((str(verdict) for verdict in Verdict), 0)
    for result in results:
        totals[result.verdict] += 1
    return totals


def as_page(results: Sequence[Result], run: Run) -> str:
    """The page, in Markdown."""
    return "\n".join(_page(results, run)).rstrip() + "\n"


def _page(results: Sequence[Result], run: Run) -> Iterator[str]:
    yield f"# {_TITLES[run.backend]}\n"
    over = _OVER[run.backend]
    yield INTRODUCTION.format(over=over, command=run.command, steps=run.steps)
    yield _BESIDE[run.backend]
    totals = counts(results)
    output = f"**{len(results)} of {run.cells} cells: {totals['green']} green, {totals['red']} red"
    output += f", {totals['not run']} not run**" if totals["not run"] else "**"
    load = os.getloadavg()[2]
    yield (
        f"{output}, in {run.seconds / 60:.0f} min. {run.date}, {machine()}, at load {load:.0f}.\n"
    )
    yield from _summary(results)
    yield from _table(results)
    yield from _exceptions(results)


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield "## Time to recover\n"
    yield "From the fault to the first step finished after it; steps that were done twice.\n"
    yield "| faults | cells | median | worst | steps lost, median | worst |"
    yield "|---|---|---|---|---|---|"
    for title, faults in _GROUPS:
        group = [
            result
            for result in results
            if result.cell.fault in faults
            and result.verdict is Verdict.GREEN
            and result.recovery_seconds is not None
            and result.cell.moment is not Moment.TEARDOWN
        ]
        if group:
            seconds = [result.recovery_seconds or 0.0 for result in group]
            lost = [result.steps_lost or 0 for result in group]
            yield (
                f"| {title} | {len(group)} | {statistics.median(seconds):.2f} s"
                f" | {max(seconds):.2f} s | {statistics.median(lost):g} | {max(lost)} |"
            )
    yield ""
    off = [abs(result.ledger_off_seconds) for result in results if result.ledger_off_seconds]
    if len(off) > 1:
        yield (
            "The phases of the ledger against the wall clock of the ranks' own diaries: off by"
            f" {statistics.median(off) * 1000:.0f} ms in the median, by"
            f" {statistics.quantiles(off, n=20)[-1] * 1000:.0f} ms in 95 % of the cells; most of"
            " it passes between a signal and the end of the process it kills.\n"
        )


_GROUPS = (
    (
        "a rank dies by a signal",
        (Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGABRT, Fault.SIGTERM, Fault.SNAPSHOT_CORRUPT),
    ),
    (
        "a rank ends by itself",
        (Fault.EXCEPTION, Fault.OUT_OF_MEMORY, Fault.EXIT_ZERO, Fault.LEAVE_ZERO, Fault.DISK_FULL),
    ),
    ("a rank hangs", (Fault.STOPPED, Fault.SPINNING)),
    ("a device or a link hangs", OF_DEVICES),
    ("an agent is killed", (Fault.AGENT_KILLED,)),
    (
        "a node falls silent",
        (Fault.NODE_DEAD, Fault.MACHINE_PAUSED, Fault.CHECKPOINT_CORRUPT),
    ),
    ("the operator is away", (Fault.OPERATOR_AWAY,)),
)


def _table(results: Sequence[Result]) -> Iterator[str]:
    moments = [moment for moment in Moment if any(r.cell.moment is moment for r in results)]
    yield "## Cells\n"
    yield (
        "Seconds to recover (steps lost). Who was hit: "
        + ", ".join(f"{sign} {role}" for role, sign in ROLE_SIGNS.items())
        + ". *fails*: going on would be wrong, and the job ended with a clear message. *ends*:"
        " there was nothing left to do. **✗**: red.\n"
    )
    yield f"| fault | {' | '.join(moments)} |"
    yield "|---" * (len(moments) + 1) + "|"
    for fault in Fault:
        row = [result for result in results if result.cell.fault is fault]
        if row:
            cells = (
                "<br>".join(_sign(r) for r in row if r.cell.moment is moment) for moment in moments
            )
            yield f"| {fault} | {' | '.join(cells)} |"
    yield ""


def _sign(result: Result) -> str:
    role = ROLE_SIGNS[result.cell.role]
    if result.verdict is not Verdict.GREEN:
        return f"{role} **{'✗' if result.verdict is Verdict.RED else 'not run'}**"
    if result.cell.fault in _FAILS:
        return f"{role} fails"
    if result.recovery_seconds is None:
        return f"{role} ends"
    return f"{role} {result.recovery_seconds:.2f} ({result.steps_lost})"


def _exceptions(results: Sequence[Result]) -> Iterator[str]:
    for verdict, title in ((Verdict.RED, "Red cells"), (Verdict.NOT_RUN, "Not run")):
        group = [result for result in results if result.verdict is verdict]
        if group:
            yield f"## {title}\n"
            for result in group:
                yield f"* {result.cell.name}: {'; '.join(map(_one_line, result.failings))}"
            yield ""


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]


def _entry(result: Result) -> dict[str, object]:
    cell = result.cell
    return {
        "fault": cell.fault,
        "moment": cell.moment,
        "role": cell.role,
        "verdict": result.verdict,
        "bitwise": result.bitwise,
        "recovery_seconds": _rounded(result.recovery_seconds),
        "steps_lost": result.steps_lost,
        "restored_from": result.tier,
        "ledger_off_seconds": _rounded(result.ledger_off_seconds),
        "seconds": _rounded(result.seconds),
        "failings": list(result.failings),
    }


def _result(entry: dict[str, Any]) -> Result:
    return Result(
        cell=Cell(
            fault=Fault(entry["fault"]), moment=Moment(entry["moment"]), role=Role(entry["role"])
        ),
        verdict=Verdict(entry["verdict"]),
        failings=tuple(entry["failings"]),
        recovery_seconds=entry["recovery_seconds"],
        steps_lost=entry["steps_lost"],
        bitwise=entry["bitwise"],
        tier=entry["restored_from"],
        ledger_off_seconds=entry["ledger_off_seconds"],
        seconds=entry["seconds"],
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
