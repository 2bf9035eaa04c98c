"""The time model: what must hold whatever the constants are, and what papers measured."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from drumline_trainer.config import DataParallel, MemoryConfig, Offload, Recompute, Schedule
from drumline_trainer.layout import Layout
from drumline_trainer.planner.constants import CALIBRATED, Constants
from drumline_trainer.planner.hardware import Cluster
from drumline_trainer.planner.setup import Setup
from drumline_trainer.planner.step_time import Bottleneck, step_time

from .clusters import ampere, cluster, gpt, megatron, setup
from .test_memory import random_setup


def faster(of: Cluster, times: float, *, links_only: bool = False) -> Cluster:
    levels = tuple(
        replace(level, bandwidth=level.bandwidth * times, latency=level.latency / times)
        for level in of.levels
    )
    if links_only:
        return replace(of, levels=levels)
    gpu = replace(
        of.gpu,
        bf16_flops=of.gpu.bf16_flops * times,
        memory_bandwidth=of.gpu.memory_bandwidth * times,
    )
    return replace(of, gpu=gpu, levels=levels)


def sized(of: Setup) -> Cluster:
    return cluster(of.layout.world_size)


def test_more_bandwidth_is_never_slower() -> None:
    draw = random.Random(5)
    for _ in range(100):
        of = random_setup(draw)
        on = sized(of)
        before = step_time(of, on).seconds
        assert step_time(of, faster(on, 1.3, links_only=True)).seconds <= before * (1 + 1e-9)
        assert step_time(of, faster(on, 1.3)).seconds < before


def test_the_time_follows_from_the_hardware_and_the_constants_alone() -> None:
    """A stored prediction would not scale: everything twice as fast is half the time, exactly."""
    draw = random.Random(8)
    half = replace(CALIBRATED, kernel=CALIBRATED.kernel / 2, step=CALIBRATED.step / 2)
    for _ in range(50):
        of = random_setup(draw)
        on = sized(of)
        whole = step_time(of, on).seconds
        assert step_time(of, faster(on, 2.0), constants=half).seconds == pytest.approx(whole / 2)


def test_every_constant_matters() -> None:
    of = setup(layout=Layout(shard=4, tensor=4), micro_batches=2)
    on = cluster(16)
    before = step_time(of, on).seconds
    for name in Constants.__dataclass_fields__:
        changed = replace(CALIBRATED, **{name: getattr(CALIBRATED, name) * 1.1})
        if name != "network":  # this layout hides what crosses nodes
            assert step_time(of, on, constants=changed).seconds != before


def test_parts_add_up_and_the_largest_is_named() -> None:
    of = setup(layout=Layout(data_parallel=DataParallel.DDP, pipeline=8), micro_batches=8)
    result = step_time(of, cluster(8))
    assert sum(result.parts.values()) == pytest.approx(result.seconds)
    assert result.bottleneck is Bottleneck.BUBBLE
    slow = faster(cluster(16), 0.01, links_only=True)
    over_nodes = setup(layout=Layout(data_parallel=DataParallel.ZERO1, replicate=16))
    assert step_time(over_nodes, slow).bottleneck is Bottleneck.DATA


def test_an_offloaded_optimizer_takes_its_time() -> None:
    of = setup(layout=Layout())
    host = replace(of, memory=MemoryConfig(offload_optimizer=Offload.CPU))
    assert step_time(host, cluster(1)).seconds > step_time(of, cluster(1)).seconds


MEGATRON_2021 = [
    # heads, hidden, layers, tensor, pipeline, GPUs, batch, measured TFLOP/s of a GPU
    (24, 2304, 24, 1, 1, 32, 512, 137),
    (32, 3072, 30, 2, 1, 64, 512, 138),
    (32, 4096, 36, 4, 1, 128, 512, 142),
    (48, 6144, 40, 8, 1, 256, 1024, 135),
    (64, 8192, 48, 8, 2, 512, 1536, 138),
    (80, 10240, 60, 8, 4, 1024, 1792, 140),
    (96, 12288, 80, 8, 8, 1536, 2304, 148),
    (128, 16384, 96, 8, 16, 1920, 2160, 155),
    (128, 20480, 105, 8, 35, 2520, 2520, 163),
    (160, 25600, 128, 8, 64, 3072, 3072, 163),
]
"""Narayanan et al. 2021, table 1; the paper leaves micro-batch and stages a rank out, so they are
the fastest by the model."""


@pytest.mark.parametrize("row", MEGATRON_2021)
def test_megatron_s_ten_models_are_met_within_ten_percent(row: tuple[int, ...]) -> None:
    heads, hidden, layers, tensor, pipeline, gpus, batch, teraflops = row
    share = 1 + 2048 / (6 * hidden) + 51_200 / (16 * layers * hidden)
    measured = 96 * batch * 2048 * layers * hidden**2 * share / (gpus * teraflops * 1e12)
    copies = gpus // tensor // pipeline
    times: list[float] = []
    for rows in (1, 2, 4, 8):
        for stages in (1, 2, 3, 4):
            count = batch // copies // rows
            if batch % (copies * rows) or count < pipeline or layers % (pipeline * stages):
                continue
            if stages > 1 and (pipeline == 1 or count % pipeline):
                continue
            layout = Layout(
                data_parallel=DataParallel.DDP,
                replicate=copies,
                tensor=tensor,
                pipeline=pipeline,
                sequence_parallel=False,
                schedule=Schedule.INTERLEAVED if stages > 1 else Schedule.ONE_F_ONE_B,
                stages_per_rank=stages,
            )
            of = megatron(
                model=gpt(hidden=hidden, heads=heads, layers=layers),
                layout=layout,
                micro_batch=rows,
                micro_batches=count,
                recompute=Recompute.FULL,
            )
            times.append(step_time(of, ampere(gpus)).seconds)
    assert min(times) == pytest.approx(measured, rel=0.10)
