"""`drumline_trainer.rank` with the stand-in for NCCL as its backend."""

from __future__ import annotations

import torch
import torch.distributed as dist

from drumline_trainer.profiling import nccl_progress
from drumline_trainer.profiling.flight_recorder import set_recorder_defaults
from drumline_trainer.rank import exit_code_of, run, run_rank, serve_store
from drumline_trainer.recovery import rendezvous
from tests.gloo.nccl.flight_records import RECORDS
from tests.gloo.nccl.process_group import NAME, register

__all__ = ["exit_code_of", "run_rank", "serve_store"]


def _standin(_: torch.device) -> str:
    return NAME


def _records() -> str | None:
    return RECORDS.dump() if dist.is_initialized() else None


set_recorder_defaults(None)  # as on GPUs
register()
rendezvous.backend_of = _standin
nccl_progress.flight_records = _records
run.forget_collectives = RECORDS.reset
