"""A rehearsed slice holds what the planner's bill says, to the byte where autograd sees it all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline_cli.plan.rehearse import read_rehearsal
from drumline_contract.config import (
    MODEL_PRESETS,
    DataConfig,
    DataParallel,
    LoraConfig,
    MemoryConfig,
    ParallelismConfig,
    Precision,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_trainer.__main__ import main
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import run_program
from tests.gloo.scale import ALL

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")

LAYOUTS = {
    "fsdp, tensor, interleaved": ParallelismConfig(
        tensor=4, pipeline=4, schedule=Schedule.INTERLEAVED, stages_per_rank=2
    ),
    "zero-1, context": ParallelismConfig(data_parallel=DataParallel.ZERO1, context=2),
    "fsdp, packed": ParallelismConfig(tensor=2),
}


EVERY_DAY = [name for name in LAYOUTS if "packed" not in name]
"""Packing takes a minute; `make test-all WHAT=samples` has it."""


@pytest.mark.parametrize("name", LAYOUTS if ALL else EVERY_DAY)
def test_a_slice_holds_what_was_predicted(name: str, gangs: GangStarter, tmp_path: Path) -> None:
    recompute = Recompute.FULL if "fsdp" in name else Recompute.NONE
    config = TrainerConfig(
        model=MODEL_PRESETS["llama-8b"],
        data=DataConfig(sequence_length=8192),
        global_batch_size=64,
        micro_batch_size=1,
        precision=Precision.BF16,
        parallelism=LAYOUTS[name],
        memory=MemoryConfig(recompute=recompute),
        lora=LoraConfig(base_bits=4) if "packed" in name else None,
    )
    file, result = tmp_path / "config.json", tmp_path / "rehearsal.json"
    file.write_text(json.dumps(config.to_dict()))
    arguments = ["rehearse", "--config", str(file), "--of-ranks", "64", "--out", str(result)]
    task = (main, arguments, tmp_path / "output", tmp_path / "errors")
    process = gangs.context.Process(target=run_program, args=task)
    process.start()
    process.join()
    assert process.exitcode == 0, (tmp_path / "errors").read_text()
    rehearsal = read_rehearsal(json.loads(result.read_text()))
    assert rehearsal.rehearsed.ranks > 1
    parts = rehearsal.parts
    assert [each.factor for each in parts] == pytest.approx([1.0] * len(parts), rel=0.02)
    assert rehearsal.correction.state == parts[0].factor
    assert rehearsal.step_seconds > 0
