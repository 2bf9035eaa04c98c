"""Every membership has its layout: written, or chosen for its size and devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    DataConfig,
    DataParallel,
    HardwareConfig,
    LayoutMode,
    ParallelismConfig,
    TrainerConfig,
)
from drumline_trainer.rank.planned_run import planned_run
from tests.texts import missing

CPU = torch.device("cpu")
AUTO = TrainerConfig(parallelism=ParallelismConfig(mode=LayoutMode.AUTO))


def placement(rank: int, *, of: int) -> Placement:
    return Placement(rank=rank, world_size=of)


def test_all_ranks_choose_the_same() -> None:
    runs = [planned_run(AUTO, placement=placement(rank, of=4), device=CPU) for rank in range(4)]
    assert all(run == runs[0] for run in runs)
    assert runs[0].config.parallelism.mode is LayoutMode.MANUAL
    assert runs[0].reasons


def test_a_gang_of_another_size_is_planned_again() -> None:
    sizes = [planned_run(AUTO, placement=placement(0, of=n), device=CPU).layout for n in (4, 2)]
    assert [layout.world_size for layout in sizes] == [4, 2]


def test_what_is_written_stays() -> None:
    config = TrainerConfig(parallelism=ParallelismConfig(tensor=2))
    run = planned_run(config, placement=placement(0, of=4), device=CPU)
    assert run.config is config
    assert run.summary == "FSDP2 · TP2"
    assert run.reasons == ()
    assert run.seconds is None  # nothing is known of a processor


def test_steps_of_known_devices_are_predicted() -> None:
    config = replace(AUTO, hardware=HardwareConfig(gpu="H100"))
    for each in (config, replace(config, parallelism=ParallelismConfig())):
        run = planned_run(each, placement=placement(0, of=4), device=CPU)
        assert run.seconds is not None
        assert run.seconds > 0


def test_a_layout_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match="global_batch_size"):
        planned_run(TrainerConfig(), placement=placement(0, of=3), device=CPU)


def test_a_written_layout_that_may_not_fit_is_said_with_what_would_help() -> None:
    config = TrainerConfig(
        model=MODEL_PRESETS["llama-8b"],
        data=DataConfig(sequence_length=4096),
        parallelism=ParallelismConfig(data_parallel=DataParallel.DDP),
        hardware=HardwareConfig(gpu="H100"),
    )
    [said] = planned_run(config, placement=placement(0, of=4), device=CPU).reasons
    assert said.startswith("memory: a rank needs ")
    assert not missing(said, "H100")
    assert "parallelism.data_parallel=fsdp" in said
    small = replace(config, model=MODEL_PRESETS["tiny"])
    assert planned_run(small, placement=placement(0, of=4), device=CPU).reasons == ()
