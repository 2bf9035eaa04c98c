"""`bench-collectives` measures every collective over every axis, and writes it down."""

from __future__ import annotations

import json
from pathlib import Path

from drumline_trainer.__main__ import main
from drumline_trainer.collectives.measurements import Collective
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import run_program


def test_every_collective_over_every_axis(gangs: GangStarter, tmp_path: Path) -> None:
    figures, output, errors = (tmp_path / name for name in ("figures", "output", "errors"))
    words = "bench-collectives --ranks 4 --layout data_parallel=ddp"
    sizes = ["--smallest", "10", "--largest", "40", "--repeats", "2", "--json", str(figures)]
    task = (main, [*words.split(), *sizes], output, errors)
    process = gangs.context.Process(target=run_program, args=task)
    process.start()
    process.join()
    assert process.exitcode == 0, errors.read_text()
    whole = json.loads(figures.read_text())
    ours = {("all_reduce", by) for by in ("ring", "tree", "two-level")}
    measured = {(row["collective"], row["by"]) for row in whole["rows"]}
    assert measured == {(each.value, "torch") for each in Collective} | ours
    assert {(row["axis"], row["ranks"]) for row in whole["rows"]} == {("dp_replicate, dp", 4)}
    assert {row["bytes"] for row in whole["rows"]} == {16, 48}  # whole values for every rank
    assert all(row["seconds"] > 0 for row in whole["rows"])
    assert len(whole["rows"]) == 2 * 9
    assert (whole["layout"], whole["world_size"], whole["backend"]) == ("DDP4", 4, "gloo")
    assert "DDP4, 4 ranks, gloo, torch" in output.read_text()
    assert "dp_replicate, dp: 4 ranks" in output.read_text()
