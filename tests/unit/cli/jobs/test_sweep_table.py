"""The jobs of a sweep, the best first."""

from __future__ import annotations

from typing import Any

from drumline_cli.jobs.sweep_table import sweep_jobs, table


def job(name: str, parameters: str, **status: Any) -> dict[str, Any]:
    annotations = {"drumline.dev/parameters": parameters}
    return {"metadata": {"name": name, "annotations": annotations}, "status": status}


def test_the_lowest_loss_is_first_and_unknown_ones_are_last() -> None:
    jobs = [
        job("a", "lr=1 seed=0", phase="Running", loss="10.5", step=3),
        job("b", "lr=2 seed=0", phase="Succeeded", loss="9.25", step=9, reason="Completed"),
        job("c", "lr=3", phase="Pending", reason="SweepLimit"),
        job("d", "lr=4 seed=0", phase="Running", loss="nan", step=2),
    ]
    rows = sweep_jobs(jobs)
    assert [row.name for row in rows] == ["b", "a", "c", "d"]
    head, *lines = (line.split() for line in table(rows).splitlines())
    assert head == ["JOB", "LR", "SEED", "LOSS", "STEP", "PHASE", "REASON"]
    assert lines[0] == ["b", "2", "0", "9.25", "9", "Succeeded", "Completed"]
    assert lines[2] == ["c", "3", "-", "-", "-", "Pending", "SweepLimit"]
