"""A mutant of `drumline_trainer.rank` on a storage that loses a bit of what rank 0 committed."""

from __future__ import annotations

import torch.distributed as dist

from drumline_trainer.checkpoint.checkpointer import Checkpointer
from drumline_trainer.rank import exit_code_of, run_rank, serve_store

__all__ = ["exit_code_of", "run_rank", "serve_store"]

_save = Checkpointer.save


def _save_and_forget(checkpoints, **asked):  # noqa: ANN001, ANN003, ANN202 - Checkpointer.save's
    saved = _save(checkpoints, **asked)
    if dist.get_rank() == 0:
        [file] = checkpoints.storage.step_folder(saved.step).glob("rank-00000-of-*")
        body = bytearray(file.read_bytes())
        body[-1] ^= 1
        file.write_bytes(body)
    return saved


Checkpointer.save = _save_and_forget
