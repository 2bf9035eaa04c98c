"""Slices of planned runs: legal, small enough, of the same kinds; and what they correct."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from drumline_contract.config import MODEL_PRESETS, ConfigError, Family, LoraConfig, ModelConfig
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import violations
from drumline_planner.correction import UNCORRECTED, MemoryCorrection
from drumline_planner.memory import memory_bill
from drumline_planner.rehearsal import (
    ComparedPart,
    RehearsalHost,
    SliceMeasurement,
    comparisons,
    correction_of,
    slice_of,
)
from drumline_planner.search import Planned, evaluate, search

from .clusters import goal, setup
from .test_search import every_choice

LAPTOP = RehearsalHost(gpu="", devices=8, memory_bytes=1 << 30)
NODE = RehearsalHost(gpu="NVIDIA H100 80GB HBM3", devices=8, memory_bytes=78 << 30)


def planned(gpus: int, preset: str = "llama-8b", batch: int = 64) -> list[Planned]:
    of = goal(gpus, batch=batch, model=MODEL_PRESETS[preset], max_micro_batch=2)
    draw = random.Random(4)
    choices = every_choice(of)
    tried = [evaluate(of, choice, capacity=1 << 62) for choice in draw.sample(choices, 60)]
    return [each for each in tried if isinstance(each, Planned)]


@pytest.mark.parametrize("preset", ["llama-8b", "qwen-moe", "llama-405b"])
@pytest.mark.parametrize("host", [LAPTOP, NODE], ids=["laptop", "node"])
def test_every_layout_has_a_legal_slice_with_its_kinds_of_parallelism(
    preset: str, host: RehearsalHost
) -> None:
    whole = planned(64, preset)
    assert len(whole) >= 10
    for each in whole:
        rehearsed = slice_of(each.config, each.layout, host=host)
        assert rehearsed.ranks <= host.devices
        assert not violations(rehearsed.config, world_size=rehearsed.ranks)
        layout = Layout.of(rehearsed.config.parallelism, world_size=rehearsed.ranks)
        assert layout.data_parallel is each.layout.data_parallel
        assert rehearsed.config.memory == each.config.memory
        axes = [
            (layout.tensor, each.layout.tensor),
            (layout.pipeline, each.layout.pipeline),
            (layout.context, each.layout.context),
            (layout.shard * layout.replicate, each.layout.shard * each.layout.replicate),
        ]
        kept = [small > 1 for small, large in axes if large > 1]
        assert sum(kept) >= min(3, len(kept))  # eight ranks are two on each of three axes


def test_a_gpu_keeps_the_widths_and_processors_make_them_smaller() -> None:
    best = search(goal(8, model=MODEL_PRESETS["llama-8b"]), best=1).planned[0]
    on_gpu = slice_of(best.config, best.layout, host=NODE).config
    assert on_gpu.model == replace(best.config.model, layers=on_gpu.model.layers)
    assert on_gpu.data.sequence_length == best.config.data.sequence_length
    small = slice_of(best.config, best.layout, host=LAPTOP)
    assert small.config.model.hidden_size < 4096
    assert any(each.startswith("hidden 4096 to") for each in small.smaller)


def test_what_a_machine_cannot_hold_and_what_has_no_samples_is_refused() -> None:
    best = search(goal(8), best=1).planned[0]
    tiny = replace(LAPTOP, memory_bytes=1 << 18)
    with pytest.raises(ConfigError, match="the smallest slice does not fit on this machine"):
        slice_of(best.config, best.layout, host=tiny)
    images = replace(best.config, model=ModelConfig(family=Family.VIT, tied_embeddings=False))
    with pytest.raises(ConfigError, match="image models cannot be rehearsed"):
        slice_of(images, best.layout, host=LAPTOP)


def test_a_slice_that_holds_more_makes_every_bill_larger_and_the_plan_another() -> None:
    of = goal(8, batch=32, model=MODEL_PRESETS["llama-8b"])
    best = search(of, best=1).planned[0]
    rehearsed = slice_of(best.config, best.layout, host=NODE)
    plain = SliceMeasurement(
        gpu=NODE.gpu, state_bytes=1, kept_bytes=1, peak_bytes=1, step_seconds=1.0
    )
    state, kept, moving = (each.predicted for each in comparisons(rehearsed, plain))
    measured = replace(
        plain,
        state_bytes=round(1.1 * state),
        kept_bytes=round(kept),
        peak_bytes=round(1.1 * state + 1.5 * moving),
    )
    correction = correction_of(comparisons(rehearsed, measured))
    assert correction.state == pytest.approx(1.1)
    assert correction.moving == pytest.approx(1.5)
    again = search(replace(of, correction=correction), best=1).planned[0]
    assert again.time.seconds > best.time.seconds
    assert again.bill.total <= of.capacity
    raw = memory_bill(again.setup, capacity=of.capacity)
    assert correction.of(raw) == again.bill
    assert 1.1 * raw.total < again.bill.total + 2**30  # context and buffers stay


@pytest.mark.parametrize("factors", [(0.6, 0.7), (1.4, 0.8), (1.0, 1.3)])
def test_with_a_correction_branch_and_bound_is_still_exact(factors: tuple[float, float]) -> None:
    state, moving = factors
    of = goal(8, batch=16, model=MODEL_PRESETS["llama-8b"], max_micro_batch=2)
    of = replace(of, correction=MemoryCorrection(state=state, moving=moving))
    tried = [evaluate(of, choice) for choice in every_choice(of)]
    times = sorted(each.time.seconds for each in tried if isinstance(each, Planned))
    fastest = [each.time.seconds for each in search(of, best=4).planned]
    assert fastest == pytest.approx(times[:4])


def test_what_is_far_off_is_an_error_and_no_correction() -> None:
    far = ComparedPart(part="weights, gradients, optimizer", predicted=1.0, measured=9.0)
    with pytest.raises(ConfigError, match="9 times the predicted memory"):
        correction_of((far,))


def test_nothing_measured_changes_nothing() -> None:
    bill = memory_bill(setup(lora=LoraConfig()), capacity=1)
    assert UNCORRECTED.of(bill) is bill
