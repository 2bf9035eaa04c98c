"""What does not learn: fp32 in a model of bf16, no gradient, and frozen beneath adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from drumline_contract.config import ConfigError, LoraConfig, TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.models.mixture import Dispatch, MixtureOfExperts
from drumline_trainer.sharding.world import World
from tests.layouts.cases import plain

NAME = "layers.1.feed_forward.correction"
TOKENS = torch.arange(24).view(2, 12) * 7 % 256
VALUES = torch.tensor([7.0 + 2**-12, 7.0, -1e-9, 0.1, 3.0, 7.0 - 2**-12, 1.0, 2.0])
"""That bf16 does not tell apart."""


def assembled(**changes: Any) -> tuple[TrainerConfig, World, ParallelModel]:
    config = TrainerConfig.from_dict({**plain("deepseek"), "precision": "bf16", **changes})
    layout = Layout.of(config.parallelism, world_size=1)
    world = World(layout=layout, rank=0, device=torch.device("cpu"))
    return config, world, assemble(config, world)


def mixture_of(model: ParallelModel) -> MixtureOfExperts:
    (stage,) = model.stages
    return next(module for module in stage.modules() if isinstance(module, MixtureOfExperts))


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("data_parallel", ["ddp", "fsdp"])
def test_no_step_changes_a_bit(kind: str, data_parallel: str) -> None:
    optimizer = {"kind": kind, "weight_decay": 0.5, "learning_rate": 0.1}
    config, world, model = assembled(
        optimizer=optimizer, parallelism={"data_parallel": data_parallel}
    )
    initialize_slices(model.slices, config=config.model, seed=1)
    [part] = [part for part in model.slices if part.name == NAME]
    part.tensor.copy_(VALUES)
    model.weights.refresh_copies()
    rule = build_optimizer(model.slices, config.optimizer, world)
    before = [each.tensor.clone() for each in model.slices]
    model.begin_step(targets=24)
    model.micro_batch_loss(TOKENS, TOKENS, []).backward()
    rule.update(model.gradients(), rate=0.1)
    model.weights.refresh_copies()
    moved = {
        each.name
        for each, old in zip(model.slices, before, strict=True)
        if not torch.equal(each.tensor, old)
    }
    assert NAME not in moved
    assert "layers.1.feed_forward.router.weight" in moved
    correction = mixture_of(model).correction
    assert correction is not None
    assert (correction.dtype, correction.tolist()) == (torch.float32, VALUES.tolist())


class Watched(Dispatch):
    """Notes how many rows go to each expert."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[torch.Tensor] = []

    def exchange_counts(self, counts_X: torch.Tensor) -> torch.Tensor:
        self.counts.append(counts_X)
        return counts_X


def test_they_follow_the_load_of_a_step_where_they_are_to() -> None:
    config, world, model = assembled(optimizer={"weight_decay": 0.5})
    routing = replace(config.model.routing, correction_rate=0.25)
    config = replace(config, model=replace(config.model, routing=routing))
    model = assemble(config, world)
    initialize_slices(model.slices, config=config.model, seed=1)
    model.weights.refresh_copies()
    mixture = mixture_of(model)
    watched = mixture.dispatch = Watched()
    before = mixture.correction
    assert before is not None
    before = before.clone()

    def step(*, skipped: bool) -> torch.Tensor:
        watched.counts.clear()
        model.begin_step(targets=48)
        for tokens in (TOKENS, TOKENS + 1):
            model.micro_batch_loss(tokens, tokens, []).backward()
        model.gradients()
        if not skipped:
            model.weights.refresh_copies()
        assert mixture.correction is not None
        return mixture.correction.clone()

    assert torch.equal(step(skipped=True), before)
    after = step(skipped=False)
    loads_X = torch.stack(watched.counts).sum(dim=0).double()
    expected_X = 0.25 * (loads_X.mean() - loads_X).sign()
    assert expected_X.unique().numel() > 1
    assert torch.equal(after - before, expected_X.float())


def test_copies_that_train_alone_know_no_load() -> None:
    routing = {"model": {"routing": {"scores": "sigmoid", "correction_rate": 0.1}, "experts": 4}}
    for parallelism in ({"local_sgd": {}}, {"data_parallel": "parameter-server"}):
        kind = {"data_parallel": "ddp", **parallelism}
        with pytest.raises(ConfigError, match="local_sgd"):
            TrainerConfig.from_dict({**routing, "parallelism": kind})
    with pytest.raises(ConfigError, match="softmax has no corrections"):
        TrainerConfig.from_dict({"model": {"routing": {"correction_rate": 0.1}}})


def test_they_are_saved_with_the_model() -> None:
    config, world, model = assembled()
    saved = build_optimizer(model.slices, config.optimizer, world).slices()
    assert f"model.{NAME}" in {part.name for part in saved}


def test_beneath_adapters_they_are_frozen() -> None:
    config, world, _ = assembled()
    model = assemble(replace(config, lora=LoraConfig(rank=2)), world)
    assert NAME in {part.name for part in model.weights.frozen}
    assert NAME not in {part.name for part in model.slices}
