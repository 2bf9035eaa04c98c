"""Modules of transformers fine-tuned: beside our own code of the same model, and out and in."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from drumline_contract import ExitCode
from drumline_contract.config import LoraConfig, TrainerConfig, merge
from drumline_trainer.adapters.lora import merge_adapter
from drumline_trainer.adapters.peft import read_peft, write_peft
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.export import export_adapters, export_checkpoint
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.models.hugging_face import import_hugging_face, projection_names
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import same_bits, whole_tensors
from tests.gloo.tuned import tuned, write_conversations, write_tiny_llama
from tests.unit.trainer.data.records.conversations import preferences, write_lines

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")

THEIRS = {"model": {"family": "transformers"}}
LORA = {"rank": 4, "alpha": 8.0}
SHORT: dict[str, Any] = {
    "steps": 3,
    "evaluation": None,
    "checkpoint": {"every_steps": 3},
    "optimizer": {"learning_rate": 0.01, "warmup_steps": 0},
}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of one model on one data set."""

    gangs: GangStarter
    model: Path
    data: Path

    def config(self, **changes: Any) -> TrainerConfig:
        return tuned(self.model, self.data, **merge(SHORT, changes))

    def losses(self, folder: Path, *, ranks: int = 1, **changes: Any) -> list[float]:
        asked = {"world_size": ranks, "checkpoint_folder": folder}
        self.gangs.run(train_rank, self.config(**changes), None, **asked)
        return list(read_losses(folder / "metrics.jsonl").values())

    def both(
        self, folder: Path, *, ranks: int = 1, **changes: Any
    ) -> tuple[list[float], list[float]]:
        """Losses of our own code, and of the module."""
        ours = self.losses(folder / "ours", ranks=ranks, **changes)
        return ours, self.losses(folder / "theirs", ranks=ranks, **merge(THEIRS, changes))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def runs(gangs: GangStarter, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    data = write_conversations(tmp_path_factory.mktemp("talks"))
    return Runs(gangs=gangs, model=model, data=data)


@pytest.fixture(scope="module")
def preferring(gangs: GangStarter, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("pairs")
    write_lines(folder / "train.jsonl", preferences())
    return Runs(gangs=gangs, model=model, data=folder)


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Some that add something, beside every projection."""
    config, stored = import_hugging_face(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in stored}
    generator = torch.Generator().manual_seed(4)
    made: dict[str, Tensor] = {}
    for layer in projection_names(model, config):
        rows, columns = shapes[f"{layer}.weight"]
        made[f"{layer}.lora_a"] = torch.randn((4, columns), generator=generator) / 4
        made[f"{layer}.lora_b"] = torch.randn((rows, 4), generator=generator) / 8
    folder = tmp_path_factory.mktemp("adapters")
    lora = LoraConfig(**LORA)
    write_peft(made, folder, lora=lora, model=config, base=model, dtype=torch.float32)
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, 1),
        ({}, 2),
        ({"parallelism": {"data_parallel": "zero2"}}, 2),
        ({"memory": {"recompute": "full"}}, 2),
        ({"lora": {"base_bits": 4}}, 1),
        ({"parallelism": {"tensor": 2}}, 4),
        ({"parallelism": {"tensor": 2}, "lora": {"base_bits": 4}}, 2),
    ],
    ids=str,
)
def test_adapters_learn_as_beside_our_own_code(
    runs: Runs, adapters: str, tmp_path: Path, changes: dict[str, Any], ranks: int
) -> None:
    asked = merge({"lora": {**LORA, "adapters_from": adapters}}, changes)
    ours, theirs = runs.both(tmp_path, ranks=ranks, **asked)
    assert theirs == pytest.approx(ours, rel=1e-5)


def test_named_layers_alone_have_adapters_and_unknown_ones_are_refused(
    runs: Runs, tmp_path: Path
) -> None:
    asked = merge(THEIRS, {"lora": {**LORA, "targets": "q_proj,mlp.down_proj"}})
    runs.losses(tmp_path / "run", **asked)
    kept = whole_tensors(tmp_path / "run" / "step-00000003")
    layers = {name.split(".lora_")[0] for name in kept if name.startswith("model.")}
    assert {name.rpartition(".")[2] for name in layers} == {"q_proj", "down_proj"}
    assert len(layers) == 4
    wrong = runs.config(**merge(asked, {"lora": {"targets": "w1"}}))
    run = {"world_size": 1, "checkpoint_folder": tmp_path / "wrong"}
    with runs.gangs.gang(train_rank, wrong, None, **run) as gang:
        [[error]] = gang.results()
        assert gang.exit_codes() == [ExitCode.CONFIG]
    assert "lora.targets" in error
    assert "q_proj" in error


def test_adapters_go_out_and_in_and_are_merged(runs: Runs, tmp_path: Path) -> None:
    asked = merge(THEIRS, {"lora": LORA})
    config = runs.config(**asked)
    begun = runs.losses(tmp_path / "run", ranks=2, **asked)
    files = named_checkpoint(str(tmp_path / "run"))
    export_adapters(files, config, tmp_path / "adapter")
    own, weights = import_hugging_face(runs.model)
    read = read_peft(tmp_path / "adapter", model=own, base=runs.model)
    assert read.config.projections == read.config.projections_of(own)

    export_checkpoint(files, config, tmp_path / "merged")
    made = dict(import_hugging_face(tmp_path / "merged")[1])
    for name, weight in weights:
        expected = merge_adapter(name, weight, read.tensors, config=LoraConfig(**LORA))
        np.testing.assert_array_equal(made[name].numpy(), expected.numpy(), err_msg=name)
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")

    learned = {"lora": {"adapters_from": str(tmp_path / "adapter")}}
    again = runs.losses(tmp_path / "again", **merge(asked, learned))
    assert again[0] != begun[0]


def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(runs: Runs, tmp_path: Path) -> None:
    asked = merge(
        THEIRS,
        {
            "lora": LORA,
            "steps": 4,
            "checkpoint": {"every_steps": 2},
            "optimizer": {"schedule": "constant"},
        },
    )
    runs.losses(tmp_path / "whole", ranks=2, **asked)
    runs.losses(tmp_path / "parts", ranks=2, **asked | {"steps": 2})
    runs.losses(tmp_path / "parts", ranks=2, **asked)
    whole, parts = (whole_tensors(tmp_path / name / "step-00000004") for name in ("whole", "parts"))
    assert same_bits(whole, parts)


@pytest.mark.parametrize("ranks", [1, 2])
def test_preferences_are_learned_as_by_our_own_code(
    preferring: Runs, tmp_path: Path, ranks: int
) -> None:
    asked = {"dpo": {"beta": 0.5}, "data": {"sequence_length": 160}}
    ours, theirs = preferring.both(tmp_path, ranks=ranks, **asked)
    assert theirs == pytest.approx(ours, rel=1e-5)


def test_preferences_of_tensor_ranks_are_those_of_one(preferring: Runs, tmp_path: Path) -> None:
    asked = merge(THEIRS, {"dpo": {"beta": 0.5}, "data": {"sequence_length": 160}})
    whole = preferring.losses(tmp_path / "whole", **asked)
    by_tensor = merge(asked, {"parallelism": {"tensor": 2}})
    assert preferring.losses(tmp_path / "cut", ranks=2, **by_tensor) == pytest.approx(
        whole, rel=1e-5
    )
    alone, together = (
        [json.loads(line)["rewards"] for line in path.read_text().splitlines()]
        for path in (tmp_path / name / "metrics" / "steps.jsonl" for name in ("whole", "cut"))
    )
    assert together[-1]["chosen"] != 0
    for each, other in zip(together, alone, strict=True):
        assert each == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_preferences_beneath_adapters(preferring: Runs, tmp_path: Path) -> None:
    asked = {"dpo": {"beta": 0.5}, "lora": LORA, "data": {"sequence_length": 160}, "steps": 8}
    learned = preferring.losses(tmp_path, ranks=2, **merge(THEIRS, asked))
    assert learned[0] == pytest.approx(math.log(2), abs=1e-6)
    assert learned[-1] < learned[0]


def test_weights_stay_as_they_begin(runs: Runs, tmp_path: Path) -> None:
    ours = runs.losses(tmp_path / "ours", trainable="norm.weight")
    asked = merge(THEIRS, {"trainable": "model.norm.weight"})
    theirs = runs.losses(tmp_path / "theirs", ranks=2, **asked)
    assert theirs == pytest.approx(ours, rel=1e-5)
    files = named_checkpoint(str(tmp_path / "theirs"))
    export_checkpoint(files, runs.config(**asked), tmp_path / "out")
    begun = dict(import_hugging_face(runs.model)[1])
    learned = import_hugging_face(tmp_path / "out")[1]
    changed = {name for name, tensor in learned if not torch.equal(tensor, begun[name])}
    assert changed == {"norm.weight"}
