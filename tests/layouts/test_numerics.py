"""Optimizers and fp16 in layouts: what one process trains with them, and overflows agreed on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline_trainer.config import TrainerConfig, merge
from tests.gloo.stored import same_bits, trainer_state, whole_tensors
from tests.layouts.cases import BATCH, Case, names
from tests.layouts.jobs import train, train_with_overflow
from tests.layouts.pool import LayoutError
from tests.layouts.runs import Runs, failings

MUON = {"optimizer": {"kind": "muon"}}
SGD = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}
FP16 = {"precision": "fp16"}
FP16_TOLERANCE = 2e-2
OVERFLOW, LAST = 7, 10

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(280)]


def case(data: str, model: str, **settings: Any) -> Case:
    return Case(data=data, model=model, **settings)


MUON_CASES = [
    case("fsdp", "untied"),
    case("fsdp", "mixture", tensor=2, expert=2),
    case("zero2", "tied", tensor=2),
    case("zero1", "tied", pipeline="zbv"),
    case("ddp", "gpt2", tensor=2, pipeline="1f1b"),
]
FP16_CASES = [
    case("fsdp", "untied", accumulation=4),
    case("ddp", "gpt2", tensor=2),
    case("zero2", "tied", pipeline="1f1b"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    made = Runs(folder=tmp_path_factory.mktemp("numerics"))
    yield made
    made.pool.close()


@pytest.mark.parametrize("one", MUON_CASES, ids=names(MUON_CASES))
def test_muon_is_that_of_one_process(runs: Runs, one: Case) -> None:
    assert failings(runs.whole(one, **MUON), runs.plain(one, **MUON)) == []


def test_sgd_is_that_of_one_process(runs: Runs) -> None:
    one = case("zero2", "untied", tensor=2)
    assert failings(runs.whole(one, **SGD), runs.plain(one, **SGD)) == []


def test_a_checkpoint_of_another_optimizer_is_refused(runs: Runs) -> None:
    one = case("fsdp", "untied")
    folder = runs.folder / "of muon"
    first = one.config(**merge(runs.text, {**MUON, "steps": 2}))
    runs.pool.run(train, first, ranks=one.ranks, checkpoint_folder=folder)
    with pytest.raises(LayoutError, match=r"model: .* optimizer\.\S+ is absent there"):
        runs.pool.run(train, one.config(**runs.text), ranks=one.ranks, checkpoint_folder=folder)


@pytest.mark.parametrize("one", FP16_CASES, ids=names(FP16_CASES))
def test_fp16_follows_fp32(runs: Runs, one: Case) -> None:
    got = runs.whole(one, **FP16)
    fp32 = runs.plain(one)
    assert 0 < got.loss_error(fp32) <= FP16_TOLERANCE


@pytest.mark.parametrize("one", FP16_CASES, ids=names(FP16_CASES))
def test_an_overflow_on_one_rank_skips_one_step_on_all(runs: Runs, one: Case) -> None:
    folder = overflowing(runs, one)
    before, after = folder / f"step-{OVERFLOW - 1:08d}", folder / f"step-{OVERFLOW:08d}"
    assert same_bits(whole_tensors(before), whole_tensors(after))
    told, later = trainer_state(before), trainer_state(after)
    assert (told["cursor"], later["cursor"]) == ((OVERFLOW - 1) * BATCH, OVERFLOW * BATCH)
    assert told["loss_scale"] == {"value": 65536.0, "steady": OVERFLOW - 1, "skipped": 0}
    assert later["loss_scale"] == {"value": 32768.0, "steady": 0, "skipped": 1}


@pytest.mark.parametrize("one", FP16_CASES[:2], ids=names(FP16_CASES[:2]))
def test_a_restart_after_an_overflow_is_bitwise(runs: Runs, one: Case) -> None:
    whole = overflowing(runs, one)
    killed = runs.folder / f"killed {one.name}"
    shutil.copytree(whole, killed)
    for number in range(OVERFLOW + 1, LAST + 1):
        shutil.rmtree(killed / f"step-{number:08d}")
    (killed / "metrics.jsonl").unlink()
    config = every_step(runs, one)
    runs.pool.run(train, config, ranks=one.ranks, checkpoint_folder=killed)
    last = f"step-{LAST:08d}"
    assert same_bits(whole_tensors(killed / last), whole_tensors(whole / last))
    assert trainer_state(killed / last) == trainer_state(whole / last)
    assert trainer_state(whole / last)["loss_scale"]["skipped"] == 1  # type: ignore[index]


def overflowing(runs: Runs, one: Case) -> Path:
    """A run in which the last rank's gradient overflows once; a checkpoint of each step."""
    folder = runs.folder / f"overflow {one.name}"
    if not folder.exists():
        config = every_step(runs, one)
        runs.pool.run(
            train_with_overflow, config, OVERFLOW, ranks=one.ranks, checkpoint_folder=folder
        )
    return folder


def every_step(runs: Runs, one: Case) -> TrainerConfig:
    saved = {"steps": LAST, "checkpoint": {"every_steps": 1, "keep": LAST}}
    return one.config(**merge(merge(runs.text, saved), FP16))
