"""The time model: what must hold whatever the constants are, and what papers measured."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from drumline_contract.config import DataParallel, LoraConfig, MemoryConfig, Offload, Recompute
from drumline_contract.hardware import GpuCluster
from drumline_contract.layout import Layout
from drumline_planner.constants import CALIBRATED, Constants
from drumline_planner.setup import TrainingSetup
from drumline_planner.step_time import StepBottleneck, step_time

from .clusters import cluster, setup
from .test_memory import random_setup


def faster(of: GpuCluster, times: float, *, links_only: bool = False) -> GpuCluster:
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


def sized(of: TrainingSetup) -> GpuCluster:
    return cluster(of.layout.world_size)


def test_more_bandwidth_is_never_slower() -> None:
    draw = random.Random(5)
    for _ in range(100):
        of = random_setup(draw)
        on = sized(of)
        before = step_time(of, on).seconds
        assert step_time(of, faster(on, 1.3, links_only=True)).seconds <= before * (1 + 1e-9)
        assert step_time(of, faster(on, 1.3)).seconds < before
        for name in ("bf16_flops", "memory_bandwidth"):
            gpu = replace(on.gpu, **{name: 1.3 * getattr(on.gpu, name)})
            assert step_time(of, replace(on, gpu=gpu)).seconds <= before * (1 + 1e-9)
        for number in range(len(on.levels)):
            levels = list(on.levels)
            levels[number] = replace(levels[number], bandwidth=1.3 * levels[number].bandwidth)
            quicker = replace(on, levels=tuple(levels))
            assert step_time(of, quicker).seconds <= before * (1 + 1e-9)


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
    assert result.bottleneck is StepBottleneck.BUBBLE
    slow = faster(cluster(16), 0.01, links_only=True)
    over_nodes = setup(layout=Layout(data_parallel=DataParallel.ZERO1, replicate=16))
    assert step_time(over_nodes, slow).bottleneck is StepBottleneck.DATA


@pytest.mark.parametrize("kind", [DataParallel.ZERO1, DataParallel.ZERO2])
def test_updated_weights_travel_beside_the_next_forward_pass(kind: DataParallel) -> None:
    """What it does not hide of slow links is seen; where nothing overlaps all of it is."""
    layout = Layout(data_parallel=kind, replicate=8)
    of = setup(layout=layout, micro_batches=1)

    def data(of: TrainingSetup, *, speed: float = 1.0) -> float:
        on = faster(cluster(8), speed, links_only=True)
        return step_time(of, on).parts[StepBottleneck.DATA]

    waits = replace(of, software=replace(of.software, overlaps_data=False))
    assert data(of) < 0.05 * data(waits)
    summed = replace(of, layout=replace(layout, data_parallel=DataParallel.DDP))
    # an all-reduce is a reduce-scatter and a gather, here of fp32 and of bf16
    assert data(waits) == pytest.approx(0.75 * data(replace(waits, layout=summed.layout)), rel=0.05)
    forward_and_backward = data(waits, speed=0.001) - data(of, speed=0.001)
    backward_alone = data(replace(waits, layout=summed.layout), speed=0.001) - data(
        summed, speed=0.001
    )
    assert forward_and_backward == pytest.approx(1.5 * backward_alone, rel=0.1)


def test_a_reference_costs_its_forward_pass() -> None:
    of = setup(layout=Layout(), micro_batch=8)
    alone, beside = (
        step_time(replace(of, reference_pass=each), cluster(1)) for each in (False, True)
    )
    assert beside.parts[StepBottleneck.PRODUCTS] == pytest.approx(
        alone.parts[StepBottleneck.PRODUCTS] * 4 / 3, rel=0.02
    )
    assert beside.model_flops == pytest.approx(alone.model_flops * 4 / 3)


def test_activations_on_the_host_cost_what_products_do_not_hide() -> None:
    """All that a layer keeps takes longer than computing it; its input alone is hidden."""
    of = setup(micro_batches=2)
    host, drive = (
        MemoryConfig(offload_activations=place, offload_folder="/scratch")
        for place in (Offload.CPU, Offload.NVME)
    )
    on = sized(of)
    here, there, far = (
        step_time(replace(of, memory=each), on) for each in (of.memory, host, drive)
    )
    assert here.parts[StepBottleneck.HOST] == 0.0
    assert there.seconds - here.seconds == pytest.approx(there.parts[StepBottleneck.HOST])
    assert 0 < there.parts[StepBottleneck.HOST] < far.parts[StepBottleneck.HOST]
    full = replace(of, recompute=Recompute.FULL, memory=replace(host, recompute=Recompute.FULL))
    assert step_time(full, on).parts[StepBottleneck.HOST] == 0.0


def test_an_offloaded_optimizer_takes_its_time() -> None:
    of = setup(layout=Layout())
    host = replace(of, memory=MemoryConfig(offload_optimizer=Offload.CPU))
    assert step_time(host, cluster(1)).seconds > step_time(of, cluster(1)).seconds


def test_frozen_weights_take_no_gradient_and_so_a_third_less_time() -> None:
    of = setup(layout=Layout(), micro_batch=8)
    whole = step_time(of, cluster(1)).parts[StepBottleneck.PRODUCTS]
    few, many = (
        step_time(replace(of, lora=LoraConfig(rank=rank)), cluster(1)).parts[
            StepBottleneck.PRODUCTS
        ]
        for rank in (8, 256)
    )
    assert 0.6 * whole < few < 0.75 * whole
    assert few < many
