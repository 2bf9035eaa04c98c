"""The table at the end of the demo."""

from __future__ import annotations

import json
from pathlib import Path

from tools.demo.farewell import OWN_SCRIPT, outcome, table


def test_the_table_says_what_the_job_did_and_left(tmp_path: Path) -> None:
    folder = tmp_path / "one-12345678"
    for step in (40, 80):
        (folder / f"step-{step:08d}").mkdir(parents=True)
    (folder / "step-00000120.tmp-1-0").mkdir()
    rows = [{"step": 1, "loss": 5.318}, {"step": 2, "loss": 2.441}]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    status = {
        "phase": "Succeeded",
        "step": 2,
        "totalSteps": 2,
        "queuedAt": "2026-01-01T00:00:00Z",
        "admittedAt": "2026-01-01T00:01:15Z",
        "startedAt": "2026-01-01T00:01:20Z",
        "finishedAt": "2026-01-01T00:02:00Z",
        "assignment": {"prefix": "node-", "nodes": ["0"]},
    }
    job = {"metadata": {"name": "one", "uid": "12345678-9abc"}, "status": status}
    done = outcome(job, checkpoints=tmp_path)
    assert table([done], racks={"node-0": "rack-0"}) == [
        "job  phase      steps  loss          checkpoints kept  waited  ran   where",
        "one  Succeeded  2/2    5.32 -> 2.44  40, 80            75 s    40 s  node-0 in rack-0",
    ]


def test_a_job_that_never_ran_leaves_dashes(tmp_path: Path) -> None:
    job = {"metadata": {"name": "two", "uid": "12345678-9abc"}, "status": {"phase": "Failed"}}
    done = outcome(job, checkpoints=tmp_path)
    assert table([done], racks={})[1].split() == ["two", "Failed", "-/-", *"----"]


def test_a_job_placed_in_the_second_of_its_creation_has_not_waited(tmp_path: Path) -> None:
    times = {"queuedAt": "2026-01-01T00:00:01Z", "admittedAt": "2026-01-01T00:00:00.700000Z"}
    done = outcome(
        {"metadata": {"name": "two", "uid": "12345678-9abc"}, "status": times}, checkpoints=tmp_path
    )
    assert " 0 s " in table([done], racks={})[1]


def test_the_page_has_the_line_for_a_script_of_ones_own() -> None:
    assert f"\n{OWN_SCRIPT}\n" in Path("docs/laptop.md").read_text()
