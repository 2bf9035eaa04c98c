"""ZeRO brings updated weights to all ranks while the next forward pass runs."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import DataParallel, Precision
from drumline_contract.layout import Layout
from drumline_trainer.parallelism.data_parallel.apply import data_parallel
from drumline_trainer.parallelism.data_parallel.weights import CutStages
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter
from tests.gloo.parallelism.data_parallel_ranks import Toy, batch, toy_on_meta

CPU = torch.device("cpu")
RANKS, LAYERS = 2, 3


def layers_at(stage: Toy, value: float) -> list[bool]:
    """Of each layer whether all its weights have it."""
    return [
        all(bool((p == value).all()) for p in layer.parameters()) for layer in stage.layers.values()
    ]


def watch(placement: Placement, pipe: Connection, precision: Precision) -> None:
    """What is whole when each layer and the last norm begin, then what a lost write leaves."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    layout = Layout(data_parallel=DataParallel.ZERO1, replicate=RANKS)
    stage = toy_on_meta(experts=0)
    model = data_parallel(
        CutStages(stages=[stage]),
        world=World.join(layout, device=CPU),
        precision=precision,
        backwards=1,
        bucket_bytes=400,
    )
    for part in model.slices:
        part.tensor.fill_(0.0)
    model.refresh_copies()
    inputs, _ = batch(0)
    stage(inputs)
    seen: list[list[bool]] = []

    def look(*_: Any) -> None:
        seen.append(layers_at(stage, 1.0))

    begins: list[nn.Module] = [*stage.layers.values(), stage.norm]
    hooks = [module.register_forward_pre_hook(look) for module in begins]
    for part in model.slices:
        part.tensor.fill_(1.0)
    model.refresh_copies()
    stage(inputs)
    for hook in hooks:
        hook.remove()
    for value in (2.0, 3.0):  # nothing reads the weights in between
        for part in model.slices:
            part.tensor.fill_(value)
        model.refresh_copies()
    stage(inputs)
    pipe.send((seen, layers_at(stage, 3.0)))
    dist.destroy_process_group()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_a_layer_waits_for_its_own_weights(gangs: GangStarter, precision: Precision) -> None:
    for seen, written_twice in gangs.run(watch, precision, world_size=RANKS):
        assert [whole[number] for number, whole in enumerate(seen[:LAYERS])] == [True] * LAYERS
        assert not seen[0][-1]
        assert seen[-1] == written_twice == [True] * LAYERS
