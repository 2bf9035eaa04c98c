from __future__ import annotations

import json
from pathlib import Path

import torch

from drumline_contract.config import ProfileConfig
from drumline_trainer.metrics.step_timer import observe, step_part
from drumline_trainer.profiling.profiler import Profiler


def profiler(config: ProfileConfig, folder: Path | None) -> Profiler:
    return Profiler(config, device=torch.device("cpu"), folder=folder, look_every=10)


def train(profiler: Profiler, *, steps: int) -> None:
    observe(profiler.ranges)
    profiler.boundary(0, rank=3)
    for step in range(1, steps + 1):
        for phase in ("forward", "backward"):
            profiler.ranges.enter(phase)
            with step_part("all_reduce", "tp"):
                torch.ones(8, 8) @ torch.ones(8, 8)
        profiler.ranges.enter("other")
        profiler.boundary(step, rank=3)
    observe()


def test_a_trace_names_the_phases_and_collectives_of_its_steps(tmp_path: Path) -> None:
    train(profiler(ProfileConfig(start_step=1, steps=2), tmp_path), steps=5)
    trace = json.loads((tmp_path / "traces" / "step-00000001" / "rank-3.json").read_bytes())
    names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    counted = {name: names.count(name) for name in ("forward", "backward", "all_reduce/tp")}
    assert counted == {"forward": 2, "backward": 2, "all_reduce/tp": 4}
    assert names.count("aten::matmul") == 4
    assert len(list(tmp_path.rglob("*.json"))) == 1


def test_a_run_that_ends_within_the_window_leaves_no_profiler_running(tmp_path: Path) -> None:
    cut_short = profiler(ProfileConfig(start_step=1, steps=9), tmp_path)
    train(cut_short, steps=2)
    cut_short.close()
    train(profiler(ProfileConfig(start_step=0, steps=1), tmp_path), steps=1)
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["step-00000000"]


def test_nothing_is_written_without_a_folder_or_for_nsys(tmp_path: Path) -> None:
    train(profiler(ProfileConfig(start_step=1, steps=1), None), steps=3)
    train(profiler(ProfileConfig(start_step=1, steps=1, nvtx=True), tmp_path), steps=3)
    assert not list(tmp_path.iterdir())
