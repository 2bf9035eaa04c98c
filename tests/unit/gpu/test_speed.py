"""Which settings `make gpu` measures on which machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.gpu.machine import Machine
from tools.gpu.runs import Bench
from tools.gpu.speed import GOALS, SIZES, fitting_settings

H100 = ("NVIDIA H100 80GB HBM3", 79)
H200 = ("NVIDIA H200", 139)


def bench_on(gpu: tuple[str, int], *, ranks: int) -> Bench:
    name, gibibytes = gpu
    machine = Machine(device="gpu", ranks=ranks, name=name, memory_bytes=gibibytes * 2**30, seen={})
    return Bench(machine=machine, folder=Path("runs"), text=Path("/text"))


@pytest.mark.parametrize("gpu", [H100, H200], ids=["h100", "h200"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("preset", GOALS)
def test_each_goal_is_judged_on_the_machines_that_hold_its_model(
    preset: str, ranks: int, gpu: tuple[str, int]
) -> None:
    fitting = fitting_settings(bench_on(gpu, ranks=ranks), preset)
    assert fitting.whole == (preset != "llama-8b" or gpu is H200 or ranks > 1)


def test_what_costs_no_time_comes_before_what_saves_memory() -> None:
    assert fitting_settings(bench_on(H100, ranks=1), "gpt2-124m").words == "ddp"
    assert fitting_settings(bench_on(H100, ranks=8), "llama-8b").words == "fsdp"
    assert fitting_settings(bench_on(H200, ranks=1), "llama-8b").words == "fsdp, recompute full"


def test_a_gpu_that_is_too_small_for_a_model_measures_some_of_its_layers() -> None:
    fitting = fitting_settings(bench_on(H100, ranks=1), "llama-8b")
    assert "of 32 layers" in fitting.words
    assert fitting.settings["model"]["hidden_size"] == 4096


def test_every_goal_is_of_a_size_that_is_measured() -> None:
    assert GOALS.keys() <= SIZES.keys()
