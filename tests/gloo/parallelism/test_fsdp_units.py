"""Embedding and head are whole on a rank while they are used, and not at the other end's time."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter

CPU = torch.device("cpu")
RANKS, WORDS, WIDTH = 2, 64, 16
ENDS = ("embedding", "output")


def whole_ends(stage: nn.Module) -> set[str]:
    """Those of the two whose weight is gathered."""
    ends = {name: getattr(stage, name) for name in ENDS}
    return {
        name
        for name, end in ends.items()
        if end is not None and not hasattr(end.weight, "placements")
    }


def watch(placement: Placement, pipe: Connection, model: dict[str, Any]) -> None:
    """What is whole when a pass goes through the layers, forward and backward."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    shape = {"vocab_size": WORDS, "hidden_size": WIDTH, "ffn_size": 16, "heads": 2, "kv_heads": 2}
    config = TrainerConfig.from_dict(
        {
            "model": shape | {"layers": 2} | model,
            "global_batch_size": RANKS,
            "data": {"sequence_length": 8},
        }
    )
    world = World.join(validated_layout(config, world_size=RANKS), device=CPU)
    made = assemble(config, world)
    for part in made.slices:
        part.tensor.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    (stage,) = made.stages
    seen: dict[str, set[str]] = {}

    def going_forward(*_: Any) -> None:
        seen["forward"] = whole_ends(stage)

    def going_backward(*_: Any) -> None:
        seen["backward"] = whole_ends(stage)

    last = stage.get_submodule("layers.1")
    last.register_forward_hook(going_forward)
    last.register_full_backward_hook(going_backward)
    tokens = torch.arange(9).unsqueeze(0)
    made.begin_step(targets=16)
    made.micro_batch_loss(tokens[:, :-1], tokens[:, 1:], ()).backward()
    pipe.send(seen)
    dist.destroy_process_group()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_end_is_not_gathered_while_the_other_is_used(gangs: GangStarter, family: str) -> None:
    untied = {"tied_embeddings": False, "family": family}
    for seen in gangs.run(watch, untied, world_size=RANKS):
        assert seen == {"forward": set(), "backward": set()}
