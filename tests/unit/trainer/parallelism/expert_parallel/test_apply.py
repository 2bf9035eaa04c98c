from __future__ import annotations

from typing import cast

import pytest
import torch
from torch.distributed import ProcessGroup

from drumline_contract.config import DataParallel, ModelConfig
from drumline_contract.layout import Axis, Layout
from drumline_trainer.models.llama import Llama
from drumline_trainer.parallelism.expert_parallel.apply import expert_names, expert_parallel
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut
from drumline_trainer.sharding.world import World

LAYOUT = Layout(data_parallel=DataParallel.DDP, replicate=4, tensor=2, expert=2)
CONFIG = ModelConfig(layers=1, hidden_size=8, ffn_size=6, heads=2, experts=4)
NAMES = {f"layers.0.feed_forward.experts.{name}" for name in ("gate", "up", "down")}
GATE = "layers.0.feed_forward.experts.gate"


def world(rank: int, *, layout: Layout = LAYOUT) -> World:
    """Nothing is sent, so any object will do for a group."""
    groups = {Axis.EXPERT: cast("ProcessGroup", object())} if layout.expert > 1 else {}
    return World(layout=layout, rank=rank, device=torch.device("meta"), groups=groups)


def model(config: ModelConfig = CONFIG) -> Llama:
    with torch.device("meta"):
        return Llama(config)


def test_experts_that_tensor_parallelism_cut_are_cut_once_more() -> None:
    other = Cut(shape=(8,), box=Box(offsets=(0,), shape=(8,)), copies=2, copy=1)
    held = Cut(shape=(4, 6, 8), box=Box(offsets=(0, 3, 0), shape=(4, 3, 8)))
    made = model()
    made.get_submodule("layers.0.feed_forward.experts").gate = torch.nn.Parameter(
        torch.empty(4, 3, 8, device="meta")
    )
    cuts = expert_parallel(made, world(3), {"norm.weight": other, GATE: held})
    assert cuts["norm.weight"] is other
    assert cuts[GATE] == Cut(shape=(4, 6, 8), box=Box(offsets=(2, 3, 0), shape=(2, 3, 8)))
    assert dict(made.named_parameters())[GATE].shape == (2, 3, 8)


def test_experts_that_are_whole_on_every_tensor_rank_are_copies() -> None:
    made = model()
    cuts = expert_parallel(made, world(3), {})
    assert cuts.keys() == expert_names(made) == NAMES
    box = Box(offsets=(2, 0, 0), shape=(2, 6, 8))
    assert cuts[GATE] == Cut(shape=(4, 6, 8), box=box, copies=2, copy=1)


def test_without_an_expert_axis_nothing_changes() -> None:
    made = model()
    before = dict(made.named_parameters())
    assert expert_parallel(made, world(0, layout=Layout(replicate=2)), {}) == {}
    assert all(before[name] is parameter for name, parameter in made.named_parameters())


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 experts.*2 ranks"):
        expert_parallel(model(ModelConfig(experts=3)), world(0), {})
