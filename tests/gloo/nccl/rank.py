"""`drumline_trainer.rank` with the stand-in for NCCL as its backend."""

from __future__ import annotations

import torch

from drumline_trainer.rank import exit_code_of, run_rank, serve_store
from drumline_trainer.recovery import rendezvous
from tests.gloo.nccl.process_group import NAME, register

__all__ = ["exit_code_of", "run_rank", "serve_store"]


def _standin(_: torch.device) -> str:
    return NAME


register()
rendezvous.backend_of = _standin
