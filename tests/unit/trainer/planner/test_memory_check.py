"""Whether a job fits before it waits for its GPUs, and the smallest change with which it would."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from drumline_contract.config import (
    MODEL_PRESETS,
    DataConfig,
    DataParallel,
    LayoutMode,
    MemoryConfig,
    ParallelismConfig,
    Precision,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_planner.memory_check import check_memory

from .clusters import cluster

EIGHT_B = TrainerConfig(
    model=MODEL_PRESETS["llama-8b"],
    data=DataConfig(sequence_length=8192),
    global_batch_size=64,
    micro_batch_size=1,
    precision=Precision.BF16,
    memory=MemoryConfig(recompute=Recompute.SELECTIVE),
)


def test_what_fits_needs_no_change() -> None:
    check = check_memory(
        replace(EIGHT_B, memory=MemoryConfig(recompute=Recompute.FULL)), cluster=cluster(8)
    )
    assert check is not None
    assert check.fits
    assert check.change is None


@pytest.mark.parametrize(
    ("config", "gpus", "fields", "ranks"),
    [
        # the micro-batch alone
        (
            replace(
                EIGHT_B,
                global_batch_size=512,
                micro_batch_size=8,
                memory=MemoryConfig(recompute=Recompute.SELECTIVE, shard_gradients=False),
            ),
            64,
            {"micro_batch_size": "1"},
            64,
        ),
        # recomputation alone
        (
            replace(EIGHT_B, memory=MemoryConfig(), data=DataConfig(sequence_length=12288)),
            64,
            {"memory.recompute": "selective"},
            64,
        ),
        # whole gradients of a rank are 32 GB
        (
            replace(EIGHT_B, memory=MemoryConfig(recompute=Recompute.FULL, shard_gradients=False)),
            2,
            {"memory.shard_gradients": "true"},
            2,
        ),
        # both
        (
            replace(EIGHT_B, micro_batch_size=None, memory=MemoryConfig(shard_gradients=False)),
            8,
            {"micro_batch_size": "1", "memory.recompute": "full"},
            8,
        ),
        # sharding
        (
            replace(
                EIGHT_B,
                memory=MemoryConfig(recompute=Recompute.FULL),
                parallelism=ParallelismConfig(data_parallel=DataParallel.DDP),
            ),
            8,
            {"parallelism.data_parallel": "fsdp"},
            8,
        ),
    ],
)
def test_the_smallest_change_that_would_fit(
    config: TrainerConfig, gpus: int, fields: dict[str, str], ranks: int
) -> None:
    check = check_memory(config, cluster=cluster(gpus))
    assert check is not None
    assert not check.fits
    assert check.change is not None
    assert (dict(check.change.fields), check.change.ranks) == (fields, ranks)
    assert check.change.needed_bytes <= check.capacity_bytes < check.needed_bytes


def test_more_devices_where_no_setting_helps() -> None:
    large = replace(
        EIGHT_B,
        model=MODEL_PRESETS["llama-405b"],
        micro_batch_size=None,
        memory=MemoryConfig(),
        parallelism=ParallelismConfig(mode=LayoutMode.AUTO),
    )
    check = check_memory(large, cluster=cluster(16))
    assert check is not None
    assert not check.fits
    assert check.change is not None
    assert check.change.ranks > 16


def test_what_is_illegal_or_too_large_to_bill_is_left_to_others() -> None:
    odd = replace(EIGHT_B, global_batch_size=63)
    assert check_memory(odd, cluster=cluster(8)) is None
    deep = replace(EIGHT_B, model=replace(EIGHT_B.model, layers=5000))
    assert check_memory(deep, cluster=cluster(8)) is None


def test_hostile_sizes_take_milliseconds() -> None:
    """The operator asks this of every job of every tenant."""
    hostile = replace(
        EIGHT_B,
        model=replace(EIGHT_B.model, layers=1024, heads=5040, kv_heads=5040, hidden_size=5040 * 64),
        global_batch_size=720_720,
        parallelism=ParallelismConfig(pipeline=64, schedule=Schedule.ZERO_BUBBLE),
    )
    for mode in LayoutMode:
        degrees = replace(hostile.parallelism, mode=mode)
        began = time.process_time()
        check_memory(replace(hostile, parallelism=degrees), cluster=cluster(64 * 720))
        assert time.process_time() - began < 20  # some 30 bills
