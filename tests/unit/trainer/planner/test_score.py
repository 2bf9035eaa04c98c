"""Scoring: rows in, predictions beside measurements out, and no way from one to the other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import drumline_planner
from drumline_contract import StepPart
from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    DataConfig,
    Recompute,
    TrainerConfig,
)
from drumline_contract.layout import Layout
from drumline_planner.calibration import calibrated, rescaled
from drumline_planner.constants import CALIBRATED, Constants
from drumline_planner.measured_rows import Measured, read_rows
from drumline_planner.score import score
from drumline_planner.search import Planned, evaluate, search
from drumline_planner.setup import TrainingSetup
from drumline_planner.space import Goal, inner_choices, outer_choices, scheduled_choices
from drumline_planner.step_time import step_time

from . import fitting
from .clusters import cluster
from .fitting import BOUNDS, loss

HEADER = "gpus,global_batch,micro_batch,hidden,heads,layers,sequence,tensor,data,pipeline"
ROW = "64,512,8,3072,32,30,2048,1,64,1"
FOLDER = Path(drumline_planner.__file__).parent
CALIBRATION = fitting.CALIBRATION.read_text()


def calibration_rows() -> list[Measured]:
    return read_rows(CALIBRATION)


def test_the_calibration_rows_are_met() -> None:
    rows = calibration_rows()
    scored, errors = score(rows)
    assert len(scored) == 41
    assert errors.mean_absolute < 0.065
    assert errors.spearman > 0.95
    assert errors.regret < 0.03
    assert errors.fits == 1.0


def test_no_change_of_a_constant_makes_the_calibration_much_better() -> None:
    rows = calibration_rows()[::2]
    now = loss(rows, CALIBRATED)
    for name, (low, high) in BOUNDS.items():
        for factor in (0.9, 1.1):
            value = min(high, max(low, getattr(CALIBRATED, name) * factor))
            assert loss(rows, replace(CALIBRATED, **{name: value})) > now - 0.004


def test_a_fit_from_elsewhere_comes_as_near() -> None:
    rows = calibration_rows()[::6]
    far = replace(CALIBRATED, matmul=0.6, kernel=5e-6)
    nearest = fitting.fit(rows, start=far, last=0.1)
    assert loss(rows, nearest) < 0.5 * loss(rows, far)
    assert loss(rows, nearest) < loss(rows, CALIBRATED) + 0.005
    assert all(low <= getattr(nearest, name) <= high for name, (low, high) in BOUNDS.items())


def test_the_constants_are_few_and_none_is_of_a_row() -> None:
    fields = Constants.__dataclass_fields__
    assert len(fields) <= 9
    assert set(fields) == set(BOUNDS)
    assert all(isinstance(getattr(CALIBRATED, name), float) for name in fields)


def test_measurements_do_not_reach_predictions() -> None:
    """The same rows with other measured times, or none, are predicted the same."""
    plain = calibration_rows()
    other = read_rows(re.sub(r",[\d.]+$", ",1.0", CALIBRATION, flags=re.MULTILINE))
    assert [each.predicted.seconds for each in score(other)[0]] == [
        each.predicted.seconds for each in score(plain)[0]
    ]


def test_no_prediction_and_no_published_time_is_stored() -> None:
    """The planner's code holds no table of results: a changed constant changes every prediction."""
    slower = replace(CALIBRATED, matmul=CALIBRATED.matmul * 0.5)
    for row in calibration_rows():
        before = step_time(row.setup, row.cluster).seconds
        assert step_time(row.setup, row.cluster, constants=slower).seconds > 1.1 * before
    measured = {f"{each.seconds * 1000:g}" for each in calibration_rows() if each.seconds}
    for path in FOLDER.rglob("*.py"):
        assert not measured & set(re.findall(r"\d+\.\d+|\d{4,}", path.read_text()))
    assert [path.name for path in (FOLDER / "data").iterdir()] == ["vtrain_a100.csv"]


def test_a_pool_s_own_measurement_scales_every_part() -> None:
    row = calibration_rows()[0]
    before = step_time(row.setup, row.cluster).seconds
    slow = rescaled(CALIBRATED, measured_over_predicted=1.25)
    after = step_time(row.setup, row.cluster, constants=slow).seconds
    assert after == pytest.approx(1.25 * before, rel=0.02)


def test_a_pool_s_parts_scale_what_they_are_of() -> None:
    parallel = TrainingSetup(
        model=MODEL_PRESETS["llama-8b"],
        layout=Layout(shard=8, tensor=4, pipeline=2),
        sequence_length=8192,
        micro_batch=1,
        micro_batches=4,
    )
    on = cluster(64)
    before = step_time(parallel, on).by_part
    assert sum(before.values()) == pytest.approx(step_time(parallel, on).seconds)
    for part in (StepPart.COMPUTE, StepPart.TENSOR, StepPart.OPTIMIZER, StepPart.REST):
        slow = calibrated(CALIBRATED, {part: 1.5})
        after = step_time(parallel, on, constants=slow).by_part
        assert after[part] == pytest.approx(1.5 * before[part], rel=0.02)
    fast = step_time(parallel, on, constants=calibrated(CALIBRATED, {StepPart.TENSOR: 0.5})).by_part
    assert fast[StepPart.TENSOR] <= 0.51 * before[StepPart.TENSOR]
    assert fast[StepPart.COMPUTE] == pytest.approx(before[StepPart.COMPUTE])
    assert step_time(parallel, on, constants=calibrated(CALIBRATED, {})).by_part == before


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_search_stays_exact_with_a_pool_s_parts(factor: float) -> None:
    config = TrainerConfig(
        model=MODEL_PRESETS["llama-1b"], data=DataConfig(sequence_length=2048), global_batch_size=16
    )
    factors = {StepPart.TENSOR: factor, StepPart.PIPELINE: 1 / factor, StepPart.DATA: factor}
    goal = Goal(config=config, cluster=cluster(4), constants=calibrated(CALIBRATED, factors))
    tried = [
        evaluate(goal, choice)
        for outer in outer_choices(goal)
        for scheduled in scheduled_choices(goal, outer)
        for choice in inner_choices(goal, scheduled)
    ]
    least = min(each.time.seconds for each in tried if isinstance(each, Planned))
    assert search(goal, best=1).planned[0].time.seconds == pytest.approx(least)


def test_rows_that_did_not_fit_are_scored_by_whether_they_do() -> None:
    oom = read_rows(f"{HEADER},iteration_ms\n64,512,512,25600,32,64,2048,1,1,64,OOM\n{ROW},3566\n")
    scored, errors = score(oom)
    assert [each.bill.fits for each in scored] == [False, True]
    assert errors.fits == 1.0
    assert errors.rows == 1


def test_later_software_recomputes_the_least_that_fits() -> None:
    small, large = "8,8,1,4096,32,32,2048,8,1,1,H100", "8,16,16,4096,32,32,8192,8,1,1,H100"
    rows = read_rows(f"{HEADER},gpu\n{small}\n{large}\n")
    assert rows[0].setup.recompute is Recompute.NONE
    assert rows[1].setup.recompute is not Recompute.NONE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus,heads\n1,2\n", "lacks column global_batch"),
        (f"{HEADER},tokens\n{ROW},1\n", "column: 'tokens' is not known"),
        (f"{HEADER}\n{ROW.replace('3072', '3073')}\n", "line 2: heads: hidden 3073"),
        (f"{HEADER}\n{ROW.replace('64,512', '-64,512')}\n", "line 2: gpus: must be greater than 0"),
        (f"{HEADER}\n{ROW.replace(',1,64,1', ',2,64,1')}\n", "gpus: 64 must be tensor 2 times"),
        (f"{HEADER},gpu\n{ROW},H1000\n", "gpu: 'H1000' is not known; did you mean H100"),
        (f"{HEADER},zero\n{ROW},7\n", "zero: must be 0, 1 or 3"),
        (f"{HEADER}\n{ROW.replace('3072', 'wide')}\n", "hidden: must be a number"),
        (f"{HEADER},family\n{ROW},gtp\n", "family: 'gtp' is not known; did you mean gpt2"),
        (f"{HEADER},kv_heads\n{ROW},5\n", "kv_heads: 32 heads do not divide by 5 .* use 4 or 8"),
        (f"{HEADER}\n{ROW},1\n", "line 2: more cells than the 10 columns"),
        (f"{HEADER}\n", "the file has no data rows"),
    ],
)
def test_a_row_that_cannot_be_names_the_field(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_rows(text)
