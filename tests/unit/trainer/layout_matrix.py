"""The layouts that a user may combine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from drumline_contract.config import TrainerConfig, merge

MODEL = {"layers": 4, "hidden_size": 32, "ffn_size": 64, "heads": 4, "kv_heads": 2}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev")
RECOMPUTE = ("none", "selective", "full")
DATA_PARALLEL = (
    {"data_parallel": "ddp"},
    {"data_parallel": "zero1"},
    {"data_parallel": "zero2"},
    {"data_parallel": "fsdp"},
    {"data_parallel": "fsdp", "replicate": 2},
)


def config(*, experts: int = 0, parallelism: dict[str, Any], **changes: Any) -> TrainerConfig:
    raw = {
        "model": {**MODEL, "experts": experts},
        "data": {"sequence_length": 16},
        "global_batch_size": 32,
        "parallelism": parallelism,
    }
    return TrainerConfig.from_dict(merge(raw, changes))


def matrix() -> Iterator[tuple[TrainerConfig, int]]:
    """What a user may combine, with the ranks it needs; pipelines have 4 or 16 micro-batches."""
    pipelines: list[dict[str, Any]] = [{}, *({"pipeline": 2, "schedule": s} for s in SCHEDULES)]
    for data, tensor, pipe, context, expert, recompute, accumulation in itertools.product(
        DATA_PARALLEL, (1, 2), pipelines, (1, 2), (1, 2), RECOMPUTE, (1, 4)
    ):
        parallelism = {**data, **pipe, "tensor": tensor, "context": context, "expert": expert}
        ranks = 4 * tensor * context * pipe.get("pipeline", 1)
        at_once = 4 if pipe else 1
        yield (
            config(
                experts=4 if expert > 1 else 0,
                parallelism=parallelism,
                global_batch_size=4 * at_once * accumulation,
                micro_batch_size=1,
                memory={"recompute": recompute},
            ),
            ranks,
        )
