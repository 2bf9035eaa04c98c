"""Layers that are not alike, and attention from latents: counted as they are built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from drumline_contract.config import (
    LoraConfig,
    MemoryConfig,
    ModelConfig,
    Precision,
    Recompute,
    TrainerConfig,
)
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.config.routing import RouterScores, Routing
from drumline_contract.layout import Axis, Layout
from drumline_contract.layout_validation import validated_layout
from drumline_contract.shapes.flops import flops_per_token, matmul_weights, weights
from drumline_contract.shapes.partition import model_costs, partition
from drumline_planner import activations
from drumline_planner.adapter_weights import trained_by_lora
from drumline_planner.memory import memory_bill
from drumline_planner.rank_weights import rank_parameters
from drumline_planner.setup import TrainingSetup
from drumline_planner.step_time import StepBottleneck, step_time
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.sharding.slices import named_weights
from drumline_trainer.sharding.world import World

from .clusters import cluster
from .deepseek import PUBLISHED, published
from .test_activations import CPU, kept_by_autograd, watched_storages

TINY = ModelConfig(
    vocab_size=96,
    layers=6,
    hidden_size=32,
    ffn_size=112,
    heads=4,
    kv_heads=4,
    head_size=20,
    tied_embeddings=False,
    latent_attention=LatentAttention(
        query_rank=24, key_value_rank=40, turned_size=8, value_size=16
    ),
    experts=8,
    experts_per_token=3,
    expert_ffn_size=16,
    shared_experts=1,
    dense_layers=2,
    routing=Routing(scores=RouterScores.SIGMOID, groups=4, groups_per_token=2, scale=2.5),
)


@contextmanager
def world_of(layout: Layout, *, rank: int) -> Iterator[World]:
    """Of a process whose collectives do nothing."""
    size = layout.world_size
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield World.join(layout, device=torch.device("cpu"))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("deepseek-v3", 671.0, 37.5),  # their 37 are without the embedding
        ("deepseek-v2", 235.7, 21.4),
        ("deepseek-v2-lite", 15.7, 2.66),
    ],
)
def test_published_models_have_the_weights_that_their_authors_count(
    name: str, billions: float, active: float
) -> None:
    model = published(name)
    built = sum(weight.numel() for _, weight in named_weights(build_on_meta(model)))
    assert weights(model) == built
    assert weights(model) / 1e9 == pytest.approx(billions, rel=1e-3)
    looked_up = model.vocab_size * model.hidden_size
    assert (matmul_weights(model) + looked_up) / 1e9 == pytest.approx(active, rel=0.02)
    assert PUBLISHED[name]["first_k_dense_replace"] == model.dense_layers


LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {"data_parallel": "ddp"},
    "tensor": {"data_parallel": "ddp", "tensor": 4},
    "pipeline": {"data_parallel": "ddp", "pipeline": 4, "schedule": "1f1b"},
    "tensor, experts, pipeline": {
        "data_parallel": "ddp",
        "tensor": 2,
        "pipeline": 2,
        "schedule": "1f1b",
        "expert": 2,
    },
}


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["all learns", "adapters"])
@pytest.mark.parametrize("degrees", LAYOUTS.values(), ids=LAYOUTS)
def test_every_rank_of_a_pipeline_has_the_weights_of_its_bill(
    degrees: dict[str, Any], lora: dict[str, Any] | None
) -> None:
    config = TrainerConfig.from_dict(
        {"parallelism": degrees, "global_batch_size": 16, "lora": lora, "dpo": None}
    )
    config = replace(config, model=TINY)
    layout = validated_layout(config, world_size=8)
    of = TrainingSetup.of(config, layout)
    trained: list[int] = []
    for rank in range(8):
        with world_of(layout, rank=rank) as world:
            model, place = assemble(config, world), world.index(Axis.PIPELINE)
        held = sum(part.tensor.numel() for part in (*model.slices, *model.weights.frozen))
        learning = 0 if lora is None else sum(part.tensor.numel() for part in model.slices)
        # the last norm, which is billed with the head, is on all tensor ranks
        billed = sum(rank_parameters(of, place))
        assert held - learning == pytest.approx(billed, abs=TINY.hidden_size)
        trained.append(learning)
    assert max(trained) == trained_by_lora(of)


def test_a_stage_of_costly_dense_layers_has_fewer() -> None:
    model = replace(TINY, layers=8, ffn_size=4000)
    costs = model_costs(model, sequence_length=64)
    assert len(set(costs.layers)) == 2
    assert [len(own) for own in partition(costs, stages=2)] == [1, 7]
    every = sum(costs.layers) + costs.head
    assert every == pytest.approx(flops_per_token(model, sequence_length=64))


def of_layers(dense: int, **changed: Any) -> TrainingSetup:
    plain = TrainingSetup(
        model=replace(published("deepseek-v2-lite"), layers=4, dense_layers=dense),
        layout=Layout(),
        sequence_length=2048,
        micro_batch=1,
        micro_batches=1,
    )
    return replace(plain, **changed)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.SELECTIVE])
def test_times_and_activations_are_sums_over_both_kinds(recompute: Recompute) -> None:
    def products(dense: int) -> float:
        of = of_layers(dense, recompute=recompute)
        return step_time(of, cluster(1)).parts[StepBottleneck.PRODUCTS]

    def kept(dense: int) -> float:
        return activations.layers_kept(of_layers(dense, recompute=recompute), range(4))

    for measure in (products, kept):
        none, single, every = (measure(dense) for dense in (0, 1, 4))
        assert none != pytest.approx(every)
        assert single == pytest.approx(none + (every - none) / 4)


def test_what_fsdp_gathers_is_the_largest_kind_of_layer() -> None:
    def gathered(dense: int) -> float:
        of = of_layers(dense, layout=Layout(shard=8))
        lines = memory_bill(of, capacity=1).lines
        return next(line.size for line in lines if line.name == "gathered weights")

    assert gathered(0) == gathered(2) > gathered(4)


@pytest.mark.filterwarnings("ignore:A saved_tensors_hooks context:FutureWarning")
@pytest.mark.parametrize("mode", Recompute)
def test_activations_of_a_mixture_with_dense_layers_are_predicted_to_three_percent(
    mode: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(TINY, hidden_size=128, vocab_size=512, ffn_size=384, expert_ffn_size=64)
    of = TrainingSetup(
        model=model,
        layout=Layout(),
        sequence_length=64,
        micro_batch=2,
        micro_batches=1,
        recompute=mode,
        memory=MemoryConfig(recompute=mode),
        precision=Precision.FP32,
        software=CPU,
    )
    stored = watched_storages(monkeypatch)
    counted = kept_by_autograd(model, mode, 1, by_position=True, stored=stored)
    predicted = activations.embedding_kept(of) + activations.head_kept(of)
    predicted += activations.layers_kept(of, range(model.layers))
    if mode is not Recompute.NONE:
        predicted -= 4 * 64 * model.features_turned  # tables, kept by recompute itself
    assert predicted == pytest.approx(counted, rel=0.03)


def test_adapters_of_latents_are_not_cut() -> None:
    config = LoraConfig(targets="query_latent,key_value_latent")
    alone, cut = (of_layers(1, lora=config, layout=Layout(tensor=t)) for t in (1, 4))
    assert trained_by_lora(alone) == trained_by_lora(cut) > 0
