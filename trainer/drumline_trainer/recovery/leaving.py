"""Leaving a broken set of collectives without leaving the process.

Nothing here waits for a peer. A Gloo operation that waits for a silent peer cannot be called off by
torch (its `abort` frees nobody), but it fails at once when its connection ends: `sever` ends the
connections of this process, and the peers that wait for us see them end too. NCCL's communicators
are aborted. Both may be called from another thread than the one that waits.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

_ONE_AT_A_TIME = threading.Lock()


def interrupt(device: torch.device) -> None:
    """Make every collective and every wait for the store of this process fail."""
    if device.type == "cuda":
        _abort_communicators()
    sever()


def leave(device: torch.device) -> None:
    """Forget all process groups, and what the abandoned step left behind."""
    interrupt(device)
    if dist.is_initialized():
        dist.destroy_process_group()
    # Groups are named by a count, in the keys of the store too. Joining that failed half-way has
    # raised it, and torch takes it back only with a group that it destroys.
    dist.distributed_c10d._world.group_count = 0  # noqa: SLF001
    gc.collect()  # models and their hooks refer to each other in circles
    if device.type == "cuda":
        torch.cuda.empty_cache()


def sever() -> None:
    """End every TCP connection of this process; a rank has none but to its peers and the store."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # no socket, not connected, or closed meanwhile
            if entry.readlink().as_posix().startswith("socket:"):
                _shut_down(int(entry.name))


def _shut_down(descriptor: int) -> None:
    # of a duplicate: the descriptor stays its owner's to close
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()  # raises for one that only listens
            connection.shutdown(socket.SHUT_RDWR)


def _abort_communicators() -> None:
    # Not run on more than one GPU so far. Aborting is unilateral and does not wait for peers, which
    # destroying a communicator with work under way would.
    with _ONE_AT_A_TIME:
        if dist.is_initialized():
            dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public way
