"""What a rank holds of a model that tensor parallelism cut, without any other rank there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.distributed import ProcessGroup

from drumline_contract.config import MODEL_PRESETS, Family, ModelConfig
from drumline_contract.layout import Axis, Layout
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.parallelism.tensor_parallel.apply import tensor_parallel
from drumline_trainer.sharding.boxes import tiles
from drumline_trainer.sharding.slices import Cut
from drumline_trainer.sharding.world import World


def world_of(rank: int, *, ranks: int) -> World:
    groups = {Axis.TENSOR: ProcessGroup(rank, ranks)} if ranks > 1 else {}
    return World(layout=Layout(tensor=ranks), rank=rank, device=torch.device("cpu"), groups=groups)


def cut_of_ranks(config: ModelConfig, *, ranks: int) -> Iterator[tuple[nn.Module, dict[str, Cut]]]:
    for rank in range(ranks):
        model = build_on_meta(config)
        world = world_of(rank, ranks=ranks)
        yield model, tensor_parallel(model, world, sequence_parallel=True)


def test_one_rank_changes_nothing() -> None:
    model = build_on_meta(ModelConfig())
    before = list(model.modules())
    assert tensor_parallel(model, world_of(0, ranks=1), sequence_parallel=True) == {}
    assert list(model.modules()) == before


@pytest.mark.parametrize(
    "config",
    [
        MODEL_PRESETS["llama-8b"],
        ModelConfig(vocab_size=257, kv_heads=4, query_key_norm=True),
        ModelConfig(kv_heads=4, experts=3, shared_experts=1),
        ModelConfig(family=Family.GPT2, kv_heads=4),
        ModelConfig(family=Family.VIT, kv_heads=4),
    ],
)
def test_four_ranks_share_out_every_parameter_under_its_own_name(config: ModelConfig) -> None:
    plain = {name: tuple(p.shape) for name, p in build_on_meta(config).named_parameters()}
    models, cuts = zip(*cut_of_ranks(config, ranks=4), strict=True)
    for name, shape in plain.items():
        of_ranks = [cut[name] for cut in cuts]
        assert {cut.shape for cut in of_ranks} == {shape}
        held = [model.get_parameter(name) for model in models]
        assert [tuple(p.shape) for p in held] == [cut.box.shape for cut in of_ranks]
        if of_ranks[0].copies == 1:
            assert tiles(shape, [cut.box for cut in of_ranks])
        else:
            assert [(cut.copies, cut.copy) for cut in of_ranks] == [(4, rank) for rank in range(4)]
    assert all(cut.keys() == plain.keys() for cut in cuts)


def test_only_what_is_small_is_held_by_all() -> None:
    model, cuts = next(cut_of_ranks(MODEL_PRESETS["llama-8b"], ranks=4))
    assert all("norm" in name for name, cut in cuts.items() if cut.copies > 1)
    assert sum(p.numel() for p in model.parameters()) < 8.04e9 / 4


def test_a_middle_stage_is_cut_too() -> None:
    model = build_on_meta(ModelConfig())
    model.embedding = model.norm = model.output = None
    cuts = tensor_parallel(model, world_of(1, ranks=2), sequence_parallel=False)
    assert cuts.keys() == dict(model.named_parameters()).keys()
    assert cuts["layers.0.attention.query.weight"].box.offsets == (32, 0)
    assert cuts["layers.0.attention.output.weight"].box.offsets == (0, 32)


def test_frozen_weights_stay_frozen_and_values_are_kept() -> None:
    model = build_on_meta(ModelConfig()).to_empty(device="cpu")
    whole = nn.init.normal_(model.get_parameter("layers.1.feed_forward.down.weight")).clone()
    model.requires_grad_(False)
    tensor_parallel(model, world_of(1, ranks=2), sequence_parallel=False)
    assert not any(p.requires_grad for p in model.parameters())
    mine = model.get_parameter("layers.1.feed_forward.down.weight")
    assert torch.equal(mine, whole[:, 96:])
