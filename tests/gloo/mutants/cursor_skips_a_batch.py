"""A mutant of `drumline_trainer.rank`: after a restore it leaves one global batch out."""

from __future__ import annotations

from drumline_contract import RestoreTier
from drumline_trainer import train
from drumline_trainer.rank import exit_code_of, run_rank, serve_store
from drumline_trainer.recovery.tiered_checkpointer import StartingPoint

__all__ = ["exit_code_of", "run_rank", "serve_store"]

_cursor_of = train.data_cursor_of


def _one_batch_on(start: StartingPoint) -> int:
    cursor = _cursor_of(start)
    if start.tier is RestoreTier.INITIAL:
        return cursor
    return cursor + start.trainer["config"]["global_batch_size"]


train.data_cursor_of = _one_batch_on
