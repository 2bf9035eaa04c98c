"""What `parallelism.mode: auto` chooses: legal, kept as written, the same every time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    DataConfig,
    DataParallel,
    LayoutMode,
    LocalSgdConfig,
    MemoryConfig,
    ParallelismConfig,
    Precision,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_contract.layout_validation import violations
from drumline_planner.auto import choose
from drumline_planner.search import search
from drumline_planner.space import Goal

from .clusters import cluster


def config(*, model: str = "llama-8b", batch: int = 64, **more: Any) -> TrainerConfig:
    degrees = more.pop("degrees", {})
    return TrainerConfig(
        model=MODEL_PRESETS[model],
        data=DataConfig(sequence_length=8192),
        global_batch_size=batch,
        precision=Precision.BF16,
        parallelism=ParallelismConfig(mode=LayoutMode.AUTO, **degrees),
        **more,
    )


def test_the_fastest_layout_that_fits_is_written_out() -> None:
    chosen = choose(config(), cluster=cluster(8))
    manual = replace(config(), parallelism=ParallelismConfig())
    best = search(Goal(config=manual, cluster=cluster(8)), best=1).planned[0]
    assert chosen.layout == best.layout
    assert chosen.fits
    assert chosen.config.parallelism.mode is LayoutMode.MANUAL
    assert chosen.config.micro_batch_size == best.setup.micro_batch
    assert not violations(chosen.config, world_size=8)
    assert str(chosen.layout) in chosen.summary
    assert "GiB" in chosen.summary
    assert any("% slower" in reason for reason in chosen.reasons)


def test_it_is_the_same_every_time() -> None:
    assert choose(config(), cluster=cluster(16)) == choose(config(), cluster=cluster(16))


@pytest.mark.parametrize(
    ("degrees", "more"),
    [
        ({"tensor": 4}, {}),
        ({"pipeline": 2}, {}),
        ({"context": 2}, {}),
        ({"replicate": 2, "data_parallel": DataParallel.FSDP}, {}),
        ({"data_parallel": DataParallel.ZERO1}, {}),
        ({"pipeline": 2, "schedule": Schedule.INTERLEAVED, "stages_per_rank": 4}, {}),
        ({}, {"micro_batch_size": 2}),
    ],
)
def test_what_is_written_is_kept(degrees: dict[str, Any], more: dict[str, Any]) -> None:
    chosen = choose(config(batch=128, degrees=degrees, **more), cluster=cluster(32)).config
    assert {name: getattr(chosen.parallelism, name) for name in degrees} == degrees
    assert {name: getattr(chosen, name) for name in more} == more
    assert not violations(chosen, world_size=32)


def test_a_recompute_mode_that_is_written_is_kept() -> None:
    memory = MemoryConfig(recompute=Recompute.FULL)
    chosen = choose(config(memory=memory), cluster=cluster(64))
    assert chosen.config.memory.recompute is Recompute.FULL
    assert choose(config(), cluster=cluster(64)).config.memory.recompute is not Recompute.FULL


def test_another_size_gets_another_layout() -> None:
    few = choose(config(batch=16), cluster=cluster(8))
    many = choose(config(batch=16), cluster=cluster(64))
    assert few.layout.world_size == 8
    assert many.layout.world_size == 64
    assert many.layout.batch_ranks <= 16  # the batch alone would feed 16 of 64 ranks


def test_where_nothing_fits_it_is_the_smallest_and_says_so() -> None:
    chosen = choose(config(model="llama-70b"), cluster=cluster(8))
    assert not chosen.fits
    assert chosen.layout.tensor == 8
    assert chosen.config.memory.recompute is Recompute.FULL
    assert any("may run out of memory" in reason for reason in chosen.reasons)


def test_what_is_written_may_leave_no_layout() -> None:
    with pytest.raises(ConfigError, match="heads"):
        choose(config(degrees={"tensor": 3}), cluster=cluster(24))


def test_ranks_that_do_not_wait_for_each_other_are_not_planned_for() -> None:
    with pytest.raises(ConfigError, match=r"parallelism\.mode"):
        ParallelismConfig(mode=LayoutMode.AUTO, local_sgd=LocalSgdConfig())
