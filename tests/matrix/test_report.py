"""What people and programs read of a run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.matrix.cells import Cell, Fault, Moment, Role
from tests.matrix.judge import Result, Verdict
from tests.matrix.report import Run, as_json, as_page, counts, page
from tests.matrix.strikes import Backend, cells_on

RUN = Run(date="2001-02-03", cells=9, steps=12, seconds=600.0)
GREEN = Result(
    cell=Cell(fault=Fault.SIGKILL, moment=Moment.DATA, role=Role.RANK_0),
    verdict=Verdict.GREEN,
    recovery_seconds=0.7512,
    steps_lost=1,
    bitwise=True,
    tier="Memory",
    ledger_off_seconds=0.0121,
    seconds=3.0,
)
RED = Result(
    cell=Cell(fault=Fault.STOPPED, moment=Moment.DATA, role=Role.TWO),
    verdict=Verdict.RED,
    failings=("the final weights differ",),
    bitwise=False,
)
FAILS = Result(
    cell=Cell(fault=Fault.NOT_FINITE, moment=Moment.FORWARD, role=Role.REMOTE),
    verdict=Verdict.GREEN,
)


def test_the_page_shows_every_result_where_its_fault_meets_its_moment() -> None:
    page = as_page([GREEN, RED, FAILS], RUN)
    assert "**3 of 9 cells: 2 green, 1 red**" in page
    assert "| SIGKILL | 0 0.75 (1) |  |" in page
    assert "| SIGSTOP | 2 **✗** |  |" in page
    assert "| loss not finite |  | r fails |" in page
    assert f"* {RED.cell.name}: the final weights differ" in page


def test_a_program_finds_every_figure() -> None:
    whole = json.loads(as_json([GREEN, RED], RUN))
    assert whole["counts"] == {"green": 1, "red": 1, "not run": 0}
    assert whole["cells"][0] == {
        "fault": "SIGKILL",
        "moment": "data",
        "role": "rank 0",
        "verdict": "green",
        "bitwise": True,
        "recovery_seconds": 0.751,
        "steps_lost": 1,
        "restored_from": "Memory",
        "ledger_off_seconds": 0.012,
        "seconds": 3.0,
        "failings": [],
    }


def test_verdicts_are_counted() -> None:
    assert counts([GREEN, GREEN, RED]) == {"green": 2, "red": 1, "not run": 0}


@pytest.mark.parametrize("backend", Backend)
def test_the_page_in_the_documents_knows_all_cells(backend: Backend) -> None:
    run = replace(RUN, backend=backend)
    assert f" of {len(cells_on(backend))} cells: " in page(backend).read_text(), (
        f"run `{run.command}`"
    )
