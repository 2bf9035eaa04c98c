"""What ranks of a warm pool are timed at: the start of a layout."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.recovery.tiered_checkpointer import TieredCheckpointer
from drumline_trainer.train import train

CPU = torch.device("cpu")


def first_step(placement: Placement, config: TrainerConfig) -> tuple[float, float]:
    """Seconds until all ranks have met, and until the first step is done; as after a recovery."""
    began = time.perf_counter()
    done: list[float] = []
    join(placement, device=CPU)
    joined = time.perf_counter() - began
    reporter = RunReporter(
        config=config,
        placement=placement,
        heartbeats=None,
        write=lambda _: done.append(time.perf_counter() - began),
        losses_file=None,
        peak_flops=None,
    )
    with TieredCheckpointer(
        config=config, placement=placement, device=CPU, reporter=reporter
    ) as checkpointer:
        train(config, device=CPU, reporter=reporter, checkpointer=checkpointer)
    dist.barrier()
    return joined, done[0] if done else 0.0
