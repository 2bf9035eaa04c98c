"""Where a part of a cut parameter lies in the whole, and who else holds it."""

from __future__ import annotations

import torch
from torch import nn

from drumline_contract.layout import Layout
from drumline_trainer.parallelism.data_parallel.weights import CutStages, ModelWeight, weights_of
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut
from drumline_trainer.sharding.world import World


def test_a_part_of_a_part_lies_where_both_say() -> None:
    cut = Cut(shape=(8, 6), box=Box(offsets=(4, 3), shape=(4, 3)), copies=2, copy=1)
    weight = ModelWeight(name="w", parameter=nn.Parameter(torch.ones(4, 3)), cut=cut, expert=False)
    rows = Box(offsets=(1, 0), shape=(2, 3))
    part = weight.part(torch.ones(2, 3), box=rows, copies=3, copy=2)
    assert part.shape == (8, 6)
    assert part.box == Box(offsets=(5, 3), shape=(2, 3))
    assert (part.copies, part.copy) == (6, 5)


def test_copies_over_both_axes_have_numbers_of_their_own() -> None:
    numbers = set()
    for tensor_rank in range(2):
        whole = Box(offsets=(0,), shape=(3,))
        cut = Cut(shape=(3,), box=whole, copies=2, copy=tensor_rank)
        weight = ModelWeight(name="w", parameter=nn.Parameter(torch.ones(3)), cut=cut, expert=False)
        numbers |= {
            weight.part(torch.ones(3), copies=3, copy=data_rank).copy for data_rank in range(3)
        }
    assert numbers == set(range(6))


def test_what_nobody_cut_is_whole_on_every_tensor_rank() -> None:
    world = World(layout=Layout(tensor=4), rank=3, device=torch.device("cpu"))
    (weight,) = weights_of(
        CutStages(stages=[nn.Linear(2, 3, bias=False)], experts={"weight"}), world=world
    )
    assert weight.cut == Cut(shape=(3, 2), box=Box(offsets=(0, 0), shape=(3, 2)), copies=4, copy=3)
    assert weight.expert
