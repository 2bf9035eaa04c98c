"""Optimizers and fp16 in layouts: what one process trains with them, and overflows agreed on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import TrainerConfig, merge
from tests.gloo.stored import same_bits, trainer_state, whole_tensors
from tests.layouts.cases import BATCH, Case, names
from tests.layouts.jobs import train, train_with_overflow
from tests.layouts.judge import failings
from tests.layouts.pool import LayoutError
from tests.layouts.runs import Runs

MUON = {"optimizer": {"kind": "muon"}}
SGD = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}
FP16 = {"precision": "fp16"}
FP16_TOLERANCE = 2e-2
OVERFLOW, LAST = 7, 10

pytestmark = [pytest.mark.gloo, pytest.mark.extended(keep=2, of="kinds of layout")]


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


@pytest.mark.parametrize("single", MUON_CASES, ids=names(MUON_CASES))
def test_muon_is_that_of_one_process(runs: Runs, single: Case) -> None:
    assert failings(runs.whole(single, **MUON), runs.plain(single, **MUON)) == []


def test_sgd_is_that_of_one_process(runs: Runs) -> None:
    case_a = case("zero2", "untied", tensor=2)
    assert failings(runs.whole(case_a, **SGD), runs.plain(case_a, **SGD)) == []


def test_a_checkpoint_of_another_optimizer_is_refused(runs: Runs) -> None:
    case_a = case("fsdp", "untied")
    folder = runs.folder / "of muon"
    first = case_a.config(**merge(runs.text, {**MUON, "steps": 2}))
    runs.pool.run(train, first, ranks=case_a.ranks, checkpoint_folder=folder)
    with pytest.raises(LayoutError, match=r"model: .* optimizer\.\S+ is absent there"):
        runs.pool.run(
            train, case_a.config(**runs.text), ranks=case_a.ranks, checkpoint_folder=folder
        )


@pytest.mark.parametrize("single", FP16_CASES, ids=names(FP16_CASES))
def test_fp16_follows_fp32(runs: Runs, single: Case) -> None:
    got = runs.whole(single, **FP16)
    fp32 = runs.plain(single)
    assert 0 < got.loss_error(fp32) <= FP16_TOLERANCE


@pytest.mark.parametrize("single", FP16_CASES, ids=names(FP16_CASES))
def test_an_overflow_on_one_rank_skips_one_step_on_all(runs: Runs, single: Case) -> None:
    folder = overflowing(runs, single)
    before, after = folder / f"step-{OVERFLOW - 1:08d}", folder / f"step-{OVERFLOW:08d}"
    assert same_bits(whole_tensors(before), whole_tensors(after))
    earlier, later = trainer_state(before), trainer_state(after)
    assert (earlier["cursor"], later["cursor"]) == ((OVERFLOW - 1) * BATCH, OVERFLOW * BATCH)
    assert earlier["loss_scale"] == {"value": 65536.0, "steady": OVERFLOW - 1, "skipped": 0}
    assert later["loss_scale"] == {"value": 32768.0, "steady": 0, "skipped": 1}


@pytest.mark.parametrize("single", FP16_CASES[:2], ids=names(FP16_CASES[:2]))
def test_a_restart_after_an_overflow_is_bitwise(runs: Runs, single: Case) -> None:
    whole = overflowing(runs, single)
    killed = runs.folder / f"killed {single.name}"
    shutil.copytree(whole, killed)
    for number in range(OVERFLOW + 1, LAST + 1):
        shutil.rmtree(killed / f"step-{number:08d}")
    (killed / "metrics.jsonl").unlink()
    config = every_step(runs, single)
    runs.pool.run(train, config, ranks=single.ranks, checkpoint_folder=killed)
    last = f"step-{LAST:08d}"
    assert same_bits(whole_tensors(killed / last), whole_tensors(whole / last))
    assert trainer_state(killed / last) == trainer_state(whole / last)
    assert trainer_state(whole / last)["loss_scale"]["skipped"] == 1  # type: ignore[index]


def overflowing(runs: Runs, each_case: Case) -> Path:
    """A run in which the last rank's gradient overflows once; a checkpoint of each step."""
    folder = runs.folder / f"overflow {each_case.name}"
    if not folder.exists():
        config = every_step(runs, each_case)
        runs.pool.run(
            train_with_overflow, config, OVERFLOW, ranks=each_case.ranks, checkpoint_folder=folder
        )
    return folder


def every_step(runs: Runs, each_case: Case) -> TrainerConfig:
    saved = {"steps": LAST, "checkpoint": {"every_steps": 1, "keep": LAST}}
    return each_case.config(**merge(merge(runs.text, saved), FP16))


def test_a_step_that_is_not_finite_is_left_out_in_fp32_where_that_is_allowed(runs: Runs) -> None:
    single, folder = case("fsdp", "untied"), runs.folder / "left out"
    saved = {"steps": 3, "checkpoint": {"every_steps": 1, "keep": 3}}
    allowed = {"optimizer": {"max_skipped_steps": 1}}
    config = single.config(**merge(merge(runs.text, saved), allowed))
    runs.pool.run(train_with_overflow, config, 2, ranks=single.ranks, checkpoint_folder=folder)
    steps = [whole_tensors(folder / f"step-{number:08d}") for number in (1, 2, 3)]
    assert same_bits(steps[0], steps[1])
    assert not same_bits(steps[1], steps[2])
    assert trainer_state(folder / "step-00000003")["loss_scale"]["skipped"] == 1  # type: ignore[index]
