"""What a rank of the pool does."""

from __future__ import annotations

from contextlib import suppress

from drumline_trainer.config import TrainerConfig
from drumline_trainer.heartbeat import Word
from drumline_trainer.placement import Placement
from drumline_trainer.rank import run_rank


class _EnoughError(Exception):
    """The checkpoint that was asked for is committed."""


def train(placement: Placement, config: TrainerConfig) -> None:
    """All steps, or those that are left."""
    run_rank(config=config, placement=placement, write=_silent)


def train_until(placement: Placement, config: TrainerConfig, checkpoint: int) -> None:
    """Up to the checkpoint of a step; the run ends as if it had been killed there."""

    def listen(word: Word) -> None:
        if getattr(word, "checkpoint_step", None) == checkpoint:
            raise _EnoughError

    with suppress(_EnoughError):
        run_rank(config=config, placement=placement, heartbeat=listen, write=_silent)


def _silent(_: str) -> None:
    """No progress lines."""
