"""Every measure of a sequence is the best layout that it leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_contract.config import MODEL_PRESETS, LoraConfig, Precision
from drumline_planner.decision_sequences import (
    Measure,
    batch_too_small,
    days,
    run_too_long,
    with_batch,
    with_gpus,
)
from drumline_planner.search import Planned, search
from drumline_planner.space import Goal
from tests.texts import missing

from .clusters import goal

LLAMA = MODEL_PRESETS["llama-8b"]


def fastest(of: Goal) -> Planned:
    return search(of, best=1).planned[0]


def by_name(measures: tuple[Measure, ...]) -> dict[str, Measure]:
    return {measure.name: measure for measure in measures}


def test_a_batch_as_large_as_the_cluster_is_not_too_small() -> None:
    assert batch_too_small(goal(8, batch=8), None) is None


def test_a_small_batch_is_worked_out_axis_by_axis() -> None:
    of = goal(16, batch=4, model=LLAMA, sequence=8192)
    best = fastest(of)
    sequence = batch_too_small(of, best)
    assert sequence is not None
    larger, context, tensor, pipeline, together, fewer = sequence.measures
    speed = best.time.tokens_per_second
    assert together.tokens_per_second == pytest.approx(speed)
    for axis, name in ((context, "CP4"), (tensor, "TP4"), (pipeline, "PP4")):
        assert name in axis.layout
        assert 0 < (axis.tokens_per_second or 0.0) <= speed
    assert larger.batch == 16
    wide = fastest(with_batch(of, 16)).time.tokens_per_second
    assert larger.tokens_per_second == pytest.approx(wide)
    assert fewer.gpus == 4
    single = max((context, tensor, pipeline), key=lambda axis: axis.tokens_per_second or 0.0)
    assert f"The fastest single axis is {single.name}" in sequence.sentences[1]
    assert f"{wide / speed:.1f} times as many" in sequence.sentences[2]
    hours = together.tokens_per_gpu_second / fewer.tokens_per_gpu_second
    assert f"{100 * hours:.0f} % of its GPU-hours" in sequence.sentences[3]


def test_an_axis_that_cannot_take_the_rest_has_no_layout() -> None:
    """Sequences of 2048 are not cut."""
    sequence = batch_too_small(goal(16, batch=4), None)
    assert sequence is not None
    context = by_name(sequence.measures)["context parallelism alone"]
    assert (context.layout, context.seconds) == ("", None)


def test_what_shortens_a_run_is_said_with_its_days_and_hours() -> None:
    of = goal(8, batch=32, model=LLAMA)
    sequence = run_too_long(of, fastest(of), total_tokens=1e12)
    assert sequence is not None
    rows = by_name(sequence.measures)
    planned, doubled = rows["as planned"], rows["2 times the GPUs"]
    again = fastest(with_gpus(of, 16)).time.tokens_per_second
    assert doubled.tokens_per_second == pytest.approx(again)
    assert days(doubled, 1e12) == pytest.approx(1e12 / again / 86_400)
    assert rows["fp8"].tokens_per_gpu_second > planned.tokens_per_gpu_second
    assert rows["2 times GPUs and batch"].batch == 64
    assert not missing(sequence.sentences[1], "fp8")


@pytest.mark.parametrize("setting", [{"lora": LoraConfig()}, {"precision": Precision.FP32}])
def test_fp8_is_no_measure_where_another_setting_excludes_it(setting: dict[str, Any]) -> None:
    of = goal(16, batch=32, model=LLAMA)
    of = replace(of, config=replace(of.config, **setting))
    sequence = run_too_long(of, fastest(of), total_tokens=1e12)
    assert sequence is not None
    assert "fp8" not in by_name(sequence.measures)


def test_it_is_said_from_where_on_the_batch_has_to_grow() -> None:
    of = goal(64, batch=16, model=LLAMA, sequence=4096)
    sequence = run_too_long(of, fastest(of), total_tokens=1e12)
    assert sequence is not None
    assert "With this batch, 128 GPUs" in sequence.sentences[-1]
    assert "the batch must grow" in sequence.sentences[-1]


def test_above_a_thousand_gpus_the_layout_stays_and_gets_copies() -> None:
    of = goal(1024, batch=1024, model=LLAMA)
    best = fastest(of)
    sequence = run_too_long(of, best, total_tokens=1e12)
    assert sequence is not None
    both = by_name(sequence.measures)["2 times GPUs and batch"]
    assert both.seconds == pytest.approx(best.time.seconds, rel=0.05)
