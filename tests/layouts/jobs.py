"""What a rank of the pool does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from unittest.mock import patch

from torch import Tensor

from drumline_agent.rank_protocol.messages import RankMessage
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import Compile, TrainerConfig
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.rank import run_rank


class _EnoughError(Exception):
    """The checkpoint that was asked for is committed."""


def train(placement: Placement, config: TrainerConfig) -> None:
    """All steps, or those that are left."""
    with _quick_compiler() if config.compile is not Compile.NONE else nullcontext():
        run_rank(config=config, placement=placement, write=_silent)


def train_until(placement: Placement, config: TrainerConfig, checkpoint: int) -> None:
    """Up to the checkpoint of a step; the run ends as if it had been killed there."""

    def listen(word: RankMessage) -> None:
        if getattr(word, "checkpoint_step", None) == checkpoint:
            raise _EnoughError

    with suppress(_EnoughError):
        run_rank(config=config, placement=placement, heartbeat=listen, write=_silent)


def train_in_small_parts(placement: Placement, config: TrainerConfig) -> None:
    """All steps; of what is offloaded also small activations, and the optimizer in many buckets."""
    from drumline_trainer.memory import offloaded_activations as activations  # noqa: PLC0415 - seldom
    from drumline_trainer.memory import offloaded_optimizer as optimizer  # noqa: PLC0415 - seldom

    with (
        patch.object(activations, "LEAST_BYTES", 256),
        patch.object(optimizer, "BUCKET_ELEMENTS", 1024),
    ):
        train(placement, config)


def train_with_overflow(placement: Placement, config: TrainerConfig, step: int) -> None:
    """All steps; in one of them the last rank has an infinite gradient."""
    steps = itertools.count(1)
    gradients = ParallelModel.gradients

    def overflow(parallel_model: ParallelModel) -> list[Tensor]:
        result = gradients(parallel_model)
        if next(steps) == step and placement.rank == placement.world_size - 1:
            result[0].view(-1)[0] = math.inf
        return result

    with patch.object(ParallelModel, "gradients", overflow):
        run_rank(config=config, placement=placement, write=_silent)


@contextmanager
def _quick_compiler() -> Iterator[None]:
    """Layers are traced and differentiated as the compiler does it, and no kernels are made."""
    from drumline_trainer.assembly import compiled_layers  # noqa: PLC0415 - imports the compiler

    quick = partial(compiled_layers.compile_layers, backend="aot_eager")
    with patch.object(compiled_layers, "compile_layers", quick):
        yield


def _silent(_: str) -> None:
    """No progress lines."""
