"""Progress of this rank in NCCL's collectives, from PyTorch's flight recorder."""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Any

import torch.distributed as dist

from drumline_agent.rank_protocol.collective_progress import CollectiveProgress, progress_of
from drumline_trainer.profiling.flight_recorder import TIMING

_C10D: Any = import_module("torch._C._distributed_c10d")
"""torch has no public way to its recorder."""


def nccl_progress(rank: int) -> CollectiveProgress | None:
    """Read the recorder. Any thread may call it. It queries CUDA events, so it may never return.

    Returns:
        None if the default group does not use NCCL.

    Raises:
        KeyError, TypeError, ValueError: this version of torch writes another format.
    """
    dump = flight_records()
    if dump is None:
        return None
    return progress_of(json.loads(dump), rank=rank, timed=os.environ.get(TIMING) == "1")


def flight_records() -> str | bytes | None:
    """Return torch's records as JSON, or None if the default group does not use NCCL."""
    if not dist.is_initialized() or dist.get_backend() != dist.Backend.NCCL:
        return None
    write = _C10D._dump_nccl_trace_json  # noqa: SLF001 - see above
    return write(includeCollectives=True, onlyActive=False)


def forget_collectives() -> None:
    """Reset the recorder for a new membership, which reuses names and counts of the last one."""
    reset = getattr(_C10D, "_reset_fr_recording_nccl", None)
    if reset is not None:  # a torch with NCCL
        reset()
