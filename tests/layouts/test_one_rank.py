"""One rank runs the code of every kind of data parallelism, and all train the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import TrainerConfig, merge
from tests.gloo.stored import same_bits, whole_tensors
from tests.layouts.cases import plain
from tests.layouts.jobs import train
from tests.layouts.runs import Runs

KINDS: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "ddp": {"parallelism": {"data_parallel": "ddp"}},
    "zero1": {"parallelism": {"data_parallel": "zero1"}},
    "zero2": {"parallelism": {"data_parallel": "zero2"}},
    "fsdp2 over one rank": {"memory": {"offload_parameters": "cpu"}},
}


@pytest.mark.gloo
def test_every_kind_trains_the_same_bits_on_one_rank(runs: Runs, tmp_path: Path) -> None:
    last = {"steps": 3, "checkpoint": {"every_steps": 3}, "micro_batch_size": 8}
    base = merge(merge(plain("untied"), runs.text), last)
    trained: dict[str, Any] = {}
    for name, changes in KINDS.items():
        folder = tmp_path / name
        config = TrainerConfig.from_dict(merge(base, changes))
        runs.pool.run(train, config, ranks=1, checkpoint_folder=folder)
        trained[name] = whole_tensors(folder / "step-00000003")
    assert [name for name in KINDS if not same_bits(trained[name], trained["fsdp"])] == []
