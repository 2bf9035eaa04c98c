"""FSDP2's own collectives as parts of a step."""

from __future__ import annotations

from collections import Counter
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.metrics.fsdp_timing import time_fsdp
from drumline_trainer.metrics.step_timer import StepTimer, observe
from drumline_trainer.recovery.rendezvous import join
from tests.gloo.gang import GangStarter

CPU = torch.device("cpu")


class Counts:
    """Which parts begin in which phase, and whether each one ends."""

    def __init__(self) -> None:
        self.phase = ""
        self.begun: Counter[tuple[str, str]] = Counter()
        self.open = 0

    def enter(self, phase: str) -> None:
        self.phase = phase

    def begin(self, name: str) -> None:
        self.begun[self.phase, name] += 1
        self.open += 1

    def end(self) -> None:
        self.open -= 1


def step(placement: Placement, pipe: Connection) -> None:
    join(placement, device=CPU)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    mesh = init_device_mesh("cpu", (2,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    time_fsdp(model, device=CPU)
    counts, timer = Counts(), StepTimer()
    observe(counts, timer)
    for observer in (counts, timer):
        observer.enter("forward")
    loss = model(torch.ones(4, 8)).sum()
    for observer in (counts, timer):
        observer.enter("backward")
    loss.backward()
    pipe.send((dict(counts.begun), counts.open, timer.take()))
    dist.destroy_process_group()


def test_gathering_before_either_pass_and_scattering_gradients_are_parts(
    gangs: GangStarter,
) -> None:
    for begun, still_open, parts in gangs.run(step, world_size=2):
        assert still_open == 0
        # a unit that is nothing but its layers still has hooks, though nothing to gather
        assert begun["forward", "all_gather/fsdp"] == 4
        assert begun["backward", "all_gather/fsdp"] == 4
        assert begun["backward", "reduce_scatter/fsdp"] == 3
        assert all(parts[name] > 0 for name in ("all_gather/fsdp", "reduce_scatter/fsdp"))
