"""When gradients of FSDP are summed after each micro-batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_contract.config import (
    DataParallel,
    LoraConfig,
    MemoryConfig,
    ModelConfig,
    ParallelismConfig,
    Precision,
    Recompute,
    TrainerConfig,
)
from drumline_contract.config.presets import MODEL_PRESETS
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import shards_gradients, validated_layout
from drumline_planner.memory import memory_bill
from drumline_planner.setup import TrainingSetup


def config_of(preset: str, **changes: object) -> TrainerConfig:
    config = TrainerConfig(
        model=ModelConfig() if preset == "tiny" else MODEL_PRESETS[preset],
        parallelism=ParallelismConfig(data_parallel=DataParallel.FSDP),
        precision=Precision.BF16,
        global_batch_size=64,
        micro_batch_size=1,
        memory=MemoryConfig(recompute=Recompute.FULL),
    )
    return replace(config, **changes)  # pyright: ignore[reportArgumentType]


def test_a_job_that_loses_half_of_its_ranks_needs_no_whole_gradients() -> None:
    config = config_of("llama-70b")
    bills = [
        memory_bill(
            TrainingSetup.of(config, validated_layout(config, world_size=ranks)), capacity=1
        ).total
        for ranks in (64, 32)
    ]
    slices = 16 * 70.6e9 / 64  # weights, gradients and moments of a rank double, and nothing more
    assert bills[1] - bills[0] == pytest.approx(slices, rel=0.05)


@pytest.mark.parametrize(
    ("config", "layout", "expected"),
    [
        (config_of("llama-8b"), Layout(shard=8), True),
        (config_of("llama-1b"), Layout(shard=8), False),  # 5 GB
        (config_of("llama-8b"), Layout(shard=2, tensor=4), False),  # 8 GB a rank
        (config_of("llama-8b", lora=LoraConfig()), Layout(shard=8), False),
        (config_of("llama-8b", trainable="output.*"), Layout(shard=8), False),
        (config_of("llama-8b", freeze="embedding.*"), Layout(shard=8), True),
        (config_of("llama-8b"), Layout(shard=2, pipeline=2), False),
        (config_of("llama-8b"), Layout(replicate=8, data_parallel=DataParallel.DDP), False),
        (config_of("llama-8b", memory=MemoryConfig(shard_gradients=False)), Layout(shard=8), False),
        (config_of("tiny", memory=MemoryConfig(shard_gradients=True)), Layout(shard=8), True),
    ],
)
def test_what_is_asked_for_or_else_what_the_model_needs(
    config: TrainerConfig, layout: Layout, *, expected: bool
) -> None:
    assert shards_gradients(layout, config) is expected
