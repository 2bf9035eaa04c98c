"""Imports what ranks need on top of torch, once in the process they are forked from.

FSDP2, torch's pipeline schedules and recomputation import torch's compiler, which takes two thirds
of the time of torch itself. A run that uses none of them does not import it; a run that does should
not import it in every rank.
"""

from __future__ import annotations

import importlib

from drumline_contract.config import Compile, DataParallel, Recompute, TrainerConfig


def preload(config: TrainerConfig, *, ranks: int | None = None) -> None:
    """Import what ranks of this configuration import before their first step.

    Args:
        config: configuration of the run.
        ranks: how many there are; None where that may change.
    """
    for module in modules_of(config, ranks=ranks):
        importlib.import_module(module)


def modules_of(config: TrainerConfig, *, ranks: int | None = None) -> list[str]:
    """List the names of what `preload` imports."""
    parallelism = config.parallelism
    modules: list[str] = []
    # A single rank shards nothing, and FSDP is not imported for it.
    if parallelism.data_parallel is DataParallel.FSDP and ranks != 1:
        modules.append("drumline_trainer.parallelism.data_parallel.fsdp")
    if parallelism.pipeline > 1:
        modules.append("drumline_trainer.parallelism.pipeline_parallel.pipeline")
    if config.memory.recompute is not Recompute.NONE:
        modules.append("drumline_trainer.memory.recompute")
    # The first call into these modules would import the rest of the compiler in every rank.
    if modules or config.compile is not Compile.NONE:
        modules.append("torch._dynamo")  # which they use from their first call on
    return modules
