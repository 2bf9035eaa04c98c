"""What a run says of the state it goes on from, and what state it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import create_autospec

import pytest

from drumline_contract import RestoreTier
from drumline_contract.config import TrainerConfig
from drumline_contract.config.optimizer import OptimizerConfig
from drumline_contract.layout import Layout
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.optimization.gradient_clipping import StepTotals
from drumline_trainer.optimization.loss_scale import LossScale
from drumline_trainer.recovery.tiered_checkpointer import INITIAL_STATE, StartingPoint
from drumline_trainer.recovery.train_state import data_cursor_of, report_start, trainer_state
from tests.texts import missing

CONFIG = TrainerConfig(steps=10, global_batch_size=4, seed=3)
EVERY_TEN = {"every_steps": 10}
SAVED = {"cursor": 8, "seed": 3, "data": "same text", "loss": 1.5}
WARNING = "the text or the seed changed: samples before and after may overlap"


def reported(start: StartingPoint, config: TrainerConfig = CONFIG, *, ranks: int = 1) -> Any:
    dataset = create_autospec(Dataset, instance=True)
    dataset.fingerprint.return_value = "same text"
    dataset.notes.return_value = ()
    reporter = create_autospec(RunReporter, instance=True)
    layout = Layout.of(config.parallelism, world_size=ranks)
    report_start(start, config=config, layout=layout, dataset=dataset, reporter=reporter)
    return reporter


def restored(tier: RestoreTier = RestoreTier.STORAGE, **changes: object) -> StartingPoint:
    return StartingPoint(step=2, tier=tier, trainer={**SAVED, **changes}, digest="d" * 64)


def lines(reporter: Any) -> list[str]:
    return [call.args[0] for call in reporter.print_line.call_args_list]


def test_names_of_classes_are_saved_where_the_data_has_them() -> None:
    dataset = create_autospec(Dataset, instance=True)
    dataset.fingerprint.return_value = "images"
    for names in ((), ("ant", "bee")):
        dataset.class_names.return_value = names
        totals = StepTotals(loss=1.0, gradient_norm=0.0, votes=0)
        state = trainer_state(4, totals, LossScale(), config=CONFIG, dataset=dataset)
        assert state.get("classes", []) == list(names)


def test_settings_that_changed_are_said() -> None:
    there = TrainerConfig(steps=10, global_batch_size=8, seed=3)
    (changed,) = lines(reported(restored(config=there.to_dict())))[1:]
    assert not missing(changed, "global_batch_size", "8", "4")


def test_a_rate_that_never_reaches_its_peak_is_said() -> None:
    warm = replace(CONFIG, optimizer=OptimizerConfig(warmup_steps=11))
    (line,) = lines(reported(INITIAL_STATE, warm))
    assert not missing(line, "optimizer.warmup_steps", "11", "10")


@pytest.mark.parametrize(
    ("degrees", "ranks", "copies"),
    [
        ({"data_parallel": "fsdp"}, 2, 1),
        ({"data_parallel": "ddp"}, 1, 1),
        ({"data_parallel": "fsdp", "replicate": 2}, 2, 2),
        ({"data_parallel": "ddp"}, 2, 2),
    ],
)
def test_a_copy_that_meets_no_other_is_said(
    degrees: dict[str, Any], ranks: int, copies: int
) -> None:
    config = TrainerConfig.from_dict(
        {"parallelism": {**degrees, "local_sgd": {"every_steps": 10}}, "checkpoint": EVERY_TEN}
    )
    said = lines(reported(INITIAL_STATE, config, ranks=ranks))
    assert [line.partition(", which")[0] for line in said] == (
        ["parallelism.local_sgd: there is one copy of the model"] if copies == 1 else []
    )


def test_a_run_that_is_over_says_so() -> None:
    done = StartingPoint(step=10, tier=RestoreTier.STORAGE, trainer=SAVED, digest="d" * 64)
    (nothing,) = lines(reported(done))[1:]
    assert not missing(nothing, "steps", "10")


def test_a_run_from_nothing_restores_nothing() -> None:
    reporter = reported(INITIAL_STATE)
    assert lines(reporter) == []
    reporter.checkpointed.assert_not_called()


def test_a_step_from_storage_is_a_checkpoint_and_a_step_from_memory_is_none() -> None:
    reporter = reported(restored())
    assert lines(reporter) == ["restored step 2 (dddddddddddd)"]
    reporter.checkpointed.assert_called_once_with(step=2, digest="d" * 64, seconds=None)
    reporter = reported(restored(RestoreTier.MEMORY))
    reporter.checkpointed.assert_not_called()


@pytest.mark.parametrize("changes", [{"data": "another text"}, {"seed": 4}])
def test_another_text_or_seed_is_said(changes: dict[str, object]) -> None:
    assert lines(reported(restored(**changes)))[1:] == [WARNING]


@pytest.mark.parametrize("cursor", [None, -1, "8", 8.0, True, 10**300])
def test_a_cursor_that_counts_no_samples_is_refused(cursor: object) -> None:
    with pytest.raises(CorruptCheckpointError, match="step 2: cursor"):
        data_cursor_of(restored(cursor=cursor))
    assert data_cursor_of(restored(cursor=0)) == 0
