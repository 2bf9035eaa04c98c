"""Corrections of routers choose experts in every layout.

No step changes a bit of them, unless they are to follow the load: then all layouts move them alike.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drumline_contract.config import ModelConfig, merge
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.export import export_checkpoint
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face, import_hugging_face
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.slices import named_weights
from tests.layouts.cases import STEPS, Case
from tests.layouts.judge import failings
from tests.layouts.runs import Runs

NAME = "layers.1.feed_forward.correction"
SHARDED = Case(data="fsdp", model="deepseek", expert=2)
CUT = Case(data="zero1", model="deepseek", tensor=2)
COPIES = Case(data="ddp", model="deepseek", accumulation=2)
MOVING = {"model": {"routing": {"correction_rate": 0.01}}}

pytestmark = [pytest.mark.gloo, pytest.mark.extended(keep=2, of="kinds of layout")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose corrections send tokens elsewhere than scores alone would."""
    folder = tmp_path_factory.mktemp("base")
    config: ModelConfig = SHARDED.config().model
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=3)
    weights = {name: tensor.detach() for name, tensor in named_weights(model)}
    weights[NAME].copy_(torch.randn(config.experts, generator=torch.Generator().manual_seed(1)))
    export_hugging_face(weights, config, folder)
    return folder


def test_they_are_the_same_before_and_after(runs: Runs, base: Path, tmp_path: Path) -> None:
    begun = {"model_from": str(base), "optimizer": {"weight_decay": 0.5}}
    expected = runs.plain(SHARDED, **begun)
    begins = dict(import_hugging_face(base)[1])[NAME]
    assert expected.loss_error(runs.plain(SHARDED)) > 1e-3  # they do something
    for case in (SHARDED, CUT):
        got = runs.whole(case, **begun)
        assert failings(got, expected) == []
        assert got.tensors[f"model.{NAME}"].tobytes() == begins.numpy().tobytes()
    step = runs.whole(SHARDED, **begun).folder / f"step-{STEPS:08d}"
    config = SHARDED.config(**merge(runs.text, begun))
    export_checkpoint(named_checkpoint(str(step)), config, tmp_path / "out", dtype=torch.bfloat16)
    assert torch.equal(dict(import_hugging_face(tmp_path / "out")[1])[NAME], begins)


def test_they_follow_the_load_of_all_ranks_and_micro_batches(runs: Runs) -> None:
    expected = runs.plain(COPIES, **MOVING)
    moved = expected.tensors[f"model.{NAME}"]
    assert len(set(moved.tolist())) > 2
    halves = runs.resumed(COPIES, SHARDED, **MOVING)
    for got in (runs.whole(COPIES, **MOVING), runs.whole(SHARDED, **MOVING), halves):
        assert failings(got, expected) == []
        assert got.tensors[f"model.{NAME}"].tobytes() == moved.tobytes()
