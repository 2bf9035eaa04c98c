"""What is offloaded trains the same weights bit for bit, and its checkpoints are anybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import merge
from tests.gloo.stored import same_bits, whole_tensors
from tests.layouts.jobs import train, train_in_small_parts
from tests.layouts.runs import Runs
from tests.layouts.test_numerics import Case, case

pytestmark = pytest.mark.extended(keep=2, of="kinds of layout")

STEPS = 4
PATHS = ("offload_optimizer", "offload_parameters", "offload_activations")
CASES: dict[str, tuple[Case, dict[str, Any], dict[str, Any]]] = {
    "fsdp, all in files": (
        case("fsdp", "untied", accumulation=4),
        {"precision": "bf16"},
        dict.fromkeys(PATHS, "nvme"),
    ),
    "fsdp, all in memory, recompute": (
        case("fsdp", "mixture", recompute="full", expert=2),
        {},
        dict.fromkeys(PATHS, "cpu"),
    ),
    "zero2, muon, fp32 weights in a file": (
        case("zero2", "tied"),
        {"precision": "bf16", "optimizer": {"kind": "muon"}},
        {"offload_optimizer": "nvme", "offload_activations": "cpu"},
    ),
    "ddp, pipeline": (
        case("ddp", "gpt2", pipeline="zbv", recompute="blocks"),
        {"precision": "bf16", "optimizer": {"kind": "sgd"}},
        {"offload_optimizer": "nvme", "offload_activations": "nvme"},
    ),
}


@pytest.mark.gloo
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_without_offload(runs: Runs, name: str, tmp_path: Path) -> None:
    case, settings, memory = CASES[name]
    files = tmp_path / "files"
    files.mkdir()
    raw = merge(
        merge(runs.text, settings),
        {"steps": STEPS, "checkpoint": {"every_steps": STEPS // 2}, "log_every_steps": STEPS},
    )
    memory = {"memory": {**memory, "offload_folder": str(files)}}
    plain = case.config(**raw)
    away = case.config(**merge(raw, memory))
    assert away.memory.offload_folder
    folders = [tmp_path / which for which in ("plain", "away", "mixed")]
    runs.pool.run(train, plain, ranks=case.ranks, checkpoint_folder=folders[0])
    runs.pool.run(train_in_small_parts, away, ranks=case.ranks, checkpoint_folder=folders[1])
    half, last = f"step-{STEPS // 2:08d}", f"step-{STEPS:08d}"
    expected = whole_tensors(folders[0] / last)
    assert same_bits(whole_tensors(folders[1] / last), expected)
    assert list(files.iterdir()) == []
    # the second half is trained away from what was trained here
    (folders[2]).mkdir()
    (folders[0] / half).rename(folders[2] / half)
    runs.pool.run(train_in_small_parts, away, ranks=case.ranks, checkpoint_folder=folders[2])
    assert same_bits(whole_tensors(folders[2] / last), expected)
