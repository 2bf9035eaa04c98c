"""A mutant of `drumline_trainer.rank`: after a restore its random generators start from step 0.

It shows only in what draws numbers while training: `model.dropout` must not be 0.
"""

from __future__ import annotations

from drumline_trainer import train
from drumline_trainer.rank import exit_code_of, run_rank, serve_store
from drumline_trainer.recovery.tiered_checkpointer import TieredCheckpointer

__all__ = ["exit_code_of", "run_rank", "serve_store"]

_reseed = train.reseed
_restore = TieredCheckpointer.restore
_restored_step = 0


def _remember(checkpointer, tensors):  # noqa: ANN001, ANN202 - TieredCheckpointer.restore's
    global _restored_step  # noqa: PLW0603 - one rank a process
    start = _restore(checkpointer, tensors)
    _restored_step = start.step
    return start


def _from_zero(seed: int, *, step: int, rank: int) -> None:
    _reseed(seed, step=step - _restored_step, rank=rank)


TieredCheckpointer.restore = _remember
train.reseed = _from_zero
