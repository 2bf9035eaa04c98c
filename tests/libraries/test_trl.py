"""Fine-tuning beside TRL: a small Llama that has read a little, on real instructions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("trl", reason="make test-all WHAT=libraries")

from tokenizers import Tokenizer

from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.data.records.kinds import conversation_of
from tests.libraries.instructions import instructions, preferences
from tests.libraries.small_llama import PROGRAM, write_small_llama
from tests.libraries.tuning import Record, by_trl, by_us, in_our_order, run_of, show
from tests.unit.trainer.data.records.conversations import write_lines

LENGTH, HELD_OUT = 192, 32
TUNING: dict[str, Any] = {
    "data": {"sequence_length": LENGTH},
    "evaluation": {"pattern": "held.jsonl", "every_steps": 20},
    "optimizer": {"learning_rate": 0.001},
    "checkpoint": {"every_steps": 1000},
    "steps": 80,
    "global_batch_size": 4,
}
SEEDS = (1, 2, 3)
PREFERRING: dict[str, Any] = {
    "data": {"sequence_length": 512},
    "checkpoint": {"every_steps": 1000},
    "log_every_steps": 1,
    "steps": 12,
    "global_batch_size": 4,
    "dpo": {"beta": 0.1},
}
LORA = {"rank": 8, "alpha": 16.0}
Lines = tuple[Path, list[Record], list[Record]]
"""A folder, what a run in it trains on, and what is held out."""


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("llama"))


def as_messages(records: list[Record]) -> list[Record]:
    """As TRL reads them; ours reads the instruction's own fields."""
    return [{"messages": conversation_of(record).messages} for record in records]


@pytest.fixture(scope="session")
def tuning(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Those instructions that need not be cut."""
    folder = tmp_path_factory.mktemp("instructions")
    tokenizer = Tokenizer.from_file(str(llama / "tokenizer.json"))
    short = [
        record
        for record in instructions()
        if record["output"] and len(tokenizer.encode("\n\n".join(record.values())).ids) < LENGTH - 8
    ]
    held, train = short[:HELD_OUT], short[HELD_OUT:]
    write_lines(folder / "train.jsonl", train)
    write_lines(folder / "held.jsonl", held)
    return folder, train, held


def test_the_same_order_gives_the_same_curve(llama: Path, tuning: Lines, tmp_path: Path) -> None:
    folder, train, held = tuning
    config = run_of(llama, folder, **TUNING)
    ours = by_us(config, tmp_path / "ours")
    records = as_messages(in_our_order(config, train))
    theirs = by_trl(config, tmp_path / "theirs", records, held_out=as_messages(held))
    show("the same order", ours, theirs)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
    assert ours.held_out == pytest.approx(theirs.held_out, rel=1e-4)
    assert ours.held_out[config.steps] < 0.95 * ours.held_out[0]


def test_orders_of_their_own_give_the_same_curve_within_noise(
    llama: Path, tuning: Lines, tmp_path: Path
) -> None:
    folder, train, held = tuning
    ours, theirs = [], []
    for seed in SEEDS:
        config = run_of(llama, folder, **TUNING, seed=seed)
        ours.append(by_us(config, tmp_path / f"ours-{seed}"))
        where, lines = tmp_path / f"theirs-{seed}", as_messages(train)
        theirs.append(by_trl(config, where, lines, held_out=as_messages(held), in_order=False))
        show(f"orders of their own, seed {seed}", ours[-1], theirs[-1])
    for step in ours[0].held_out:
        mine, other = ([curve.held_out[step] for curve in curves] for curves in (ours, theirs))
        assert abs(fmean(mine) - fmean(other)) < 0.01 * fmean(other)


@pytest.fixture(scope="session")
def pairs(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A folder of lines, and what is in them: pairs that fit into a window with both answers."""
    folder = tmp_path_factory.mktemp("pairs")
    tokenizer = Tokenizer.from_file(str(llama / "tokenizer.json"))

    def tokens(record: Record) -> int:
        asked, *answers = (
            sum(len(tokenizer.encode(message["content"]).ids) + 3 for message in record[part])
            for part in ("prompt", "chosen", "rejected")
        )
        return sum(asked + answer for answer in answers)

    short = [record for record in preferences() if tokens(record) < 500]
    write_lines(folder / "train.jsonl", short)
    return folder, short


@pytest.mark.parametrize("lora", [None, LORA], ids=["all learns", "lora"])
def test_preferences_give_the_curves_of_trl(
    llama: Path, pairs: tuple[Path, list[Record]], tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    folder, records = pairs
    rate = 0.005 if lora else 0.0005
    config = run_of(llama, folder, **PREFERRING | {"optimizer": {"learning_rate": rate}}, lora=lora)
    ours = by_us(config, tmp_path / "ours")
    adapter = initial_adapter(config, tmp_path) if lora else None
    ordered = in_our_order(config, records)
    theirs = by_trl(config, tmp_path / "theirs", ordered, adapter=adapter)
    show(f"preferences, {'LoRA' if lora else 'all weights'}", ours, theirs)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-3)
    for name, values in theirs.rewards.items():
        assert ours.rewards[name] == pytest.approx(values, rel=1e-2, abs=2e-4), name
    assert ours.losses[-1] < 0.9 * ours.losses[0]


def initial_adapter(config: TrainerConfig, folder: Path) -> Path:
    """The adapters that the run begins with, as peft reads them: after a step of no length."""
    raw = merge(config.to_dict(), {"steps": 1, "optimizer": {"learning_rate": 1e-30}})
    by_us(TrainerConfig.from_dict(raw), folder / "begin")
    saved = folder / "begin" / "step-00000001"
    subprocess.run([*PROGRAM, "export", "--adapter", saved, folder / "adapter"], check=True)
    return folder / "adapter"
