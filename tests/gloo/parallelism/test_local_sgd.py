"""When copies meet, both ends of a tied pipeline get the same bits, wherever they lie in a row."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import LocalSgdConfig, OptimizerConfig, OptimizerKind
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.parallelism.data_parallel.local_sgd import LocalSgd
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import CPU

COPIES = 3
TIED = "embedding.weight"


def tensor_slice(name: str, rows: int) -> TensorSlice:
    shape = (rows, 8)
    return TensorSlice(
        name=name, shape=shape, box=Box(offsets=(0, 0), shape=shape), tensor=torch.zeros(shape)
    )


def meet(slices: Sequence[TensorSlice], seed: int) -> Tensor:
    """The embedding after a step of this copy and a meeting of all."""
    rule = OptimizerConfig(kind=OptimizerKind.SGD, momentum=0.0, weight_decay=0.0)
    copy = LocalSgd(
        build_optimizer(slices, rule, World(layout=Layout(), rank=0, device=CPU)),
        slices,
        LocalSgdConfig(every_steps=1),
        copies=dist.group.WORLD,
        steps=1,
    )
    copy.set_finished_steps(0)
    gradients = [
        torch.randn(part.shape, generator=torch.Generator().manual_seed(seed)) for part in slices
    ]
    copy.update(gradients, rate=0.1)
    return next(part.tensor for part in slices if part.name == TIED)


def meet_at_both_ends(placement: Placement, pipe: Connection) -> None:
    join(placement, device=CPU)
    first = meet([tensor_slice(TIED, 400), tensor_slice("layers.0.w", 3)], placement.rank)
    last = meet(
        [tensor_slice("layers.1.w", 900), tensor_slice(TIED, 400), tensor_slice("norm", 1)],
        placement.rank,
    )
    pipe.send((bool(first.count_nonzero()), torch.equal(first, last)))
    dist.destroy_process_group()


def test_both_ends_get_the_same_bits(gangs: GangStarter) -> None:
    assert gangs.run(meet_at_both_ends, world_size=COPIES) == [(True, True)] * COPIES
