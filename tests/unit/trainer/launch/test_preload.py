from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import TrainerConfig
from drumline_trainer.launch.preload import modules_of

FSDP = "drumline_trainer.parallelism.data_parallel.fsdp"


@pytest.mark.parametrize(
    ("raw", "ranks", "modules"),
    [
        ({}, 2, [FSDP, "torch._dynamo"]),
        ({}, None, [FSDP, "torch._dynamo"]),
        ({}, 1, []),
        ({"parallelism": {"data_parallel": "ddp", "tensor": 2}}, 4, []),
        (
            {"parallelism": {"data_parallel": "zero1", "pipeline": 2}},
            4,
            ["drumline_trainer.parallelism.pipeline_parallel.pipeline", "torch._dynamo"],
        ),
        (
            {"parallelism": {"data_parallel": "ddp"}, "memory": {"recompute": "full"}},
            2,
            ["drumline_trainer.memory.recompute", "torch._dynamo"],
        ),
    ],
)
def test_what_is_imported_follows_from_the_layout(
    raw: dict[str, Any], ranks: int | None, modules: list[str]
) -> None:
    assert modules_of(TrainerConfig.from_dict(raw), ranks=ranks) == modules
