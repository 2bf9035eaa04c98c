"""Compiled layers that ranks share out train as eager ones: the compiler's own rounding is less."""

from __future__ import annotations

from hashlib import blake2b
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.compiled_layers import compile_layers
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.models.documents import Documents
from drumline_trainer.parallelism.context_parallel.zigzag import context_slices
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter

CPU = torch.device("cpu")
RANKS, ROWS, LENGTH, STEPS = 2, 2, 16, 3
MODEL: dict[str, Any] = {"layers": 2, "hidden_size": 16, "ffn_size": 32, "heads": 4, "kv_heads": 2}
EXPERTS = MODEL | {"experts": 4, "experts_per_token": 2, "shared_experts": 1}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"parallelism": {"tensor": 2}},
    "context, documents": {
        "parallelism": {"context": 2},
        "data": {"sequence_length": LENGTH, "packing": "separate"},
    },
    "expert, fsdp": {"parallelism": {"expert": 2}, "model": EXPERTS},
}


def the_config(change: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig.from_dict(
        {
            "model": MODEL,
            "global_batch_size": ROWS * RANKS,
            "data": {"sequence_length": LENGTH},
        }
        | change
    )


def fill(model: ParallelModel) -> None:
    """The same whatever the ranks, and again the next time."""
    for part in model.slices:
        name = f"{part.name} {part.box}".encode()
        seed = int.from_bytes(blake2b(name, digest_size=4).digest())
        part.tensor.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    model.weights.refresh_copies()


def a_batch(config: TrainerConfig, world: World, *, step: int) -> tuple[Any, Any, Any]:
    """Documents lie elsewhere in each step."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 256, (ROWS, LENGTH + 1), generator=generator)
    places = torch.arange(LENGTH)
    if world.layout.context > 1:
        held = context_slices(LENGTH, size=2, index=world.rank)
        places = torch.from_numpy(held)
    documents: tuple[Documents, ...] = ()
    if config.data.packing == "separate":
        ids = (torch.arange(LENGTH) >= 5 + step).int().expand(ROWS, -1)
        positions = torch.arange(LENGTH).int() - ids * (5 + step)
        documents = (Documents.of(ids.numpy(), positions.numpy()),)
    return tokens[:, :-1][:, places], tokens[:, 1:][:, places], documents


def losses_of(config: TrainerConfig, world: World, *, compiled: bool) -> list[float]:
    """Of some steps of gradient descent."""
    model = assemble(config, world)
    fill(model)
    if compiled:
        for stage in model.stages:
            compile_layers(stage, config, backend="aot_eager")
    losses: list[float] = []
    for step in range(STEPS):
        model.begin_step(targets=ROWS * LENGTH)
        loss = model.micro_batch_loss(*a_batch(config, world, step=step))
        loss.backward()
        losses.append(loss.item())
        for part, gradient in zip(model.slices, model.gradients(), strict=True):
            part.tensor.sub_(gradient, alpha=0.1)
        model.weights.refresh_copies()
    return losses


def eager_and_compiled(placement: Placement, pipe: Connection) -> None:
    """The losses of every layout."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    made: dict[str, list[list[float]]] = {}
    for name, change in LAYOUTS.items():
        config = the_config(change)
        world = World.join(validated_layout(config, world_size=RANKS), device=CPU)
        made[name] = [losses_of(config, world, compiled=each) for each in (False, True)]
    pipe.send(made)
    dist.destroy_process_group()


@pytest.mark.extended
def test_compiled_layers_that_ranks_share_train_as_eager_ones(gangs: GangStarter) -> None:
    for made in gangs.run(eager_and_compiled, world_size=RANKS):
        for name in LAYOUTS:
            eager, compiled = made[name]
            assert compiled == pytest.approx(eager, rel=1e-5), name
            assert len(set(eager)) == STEPS, name
