"""Leaving a broken set of collectives without leaving the process.

Nothing here waits for a peer. A Gloo operation that waits for a silent peer cannot be called off by
torch (its `abort` frees nobody), but it fails at once when its connection ends: `sever` ends the
connections of this process, and the peers that wait for us see them end too. NCCL's communicators
are aborted. Both may be called from another thread than the one that waits.

Gloo has a hole: an operation whose bytes are on the way when its connection ends is told nothing
and waits until its own timeout, minutes later, in us or in the peer. So a connection is ended only
once nothing has moved on it for a moment: what is on the way arrives, and what still waits then
waits for a peer that has not begun. Who never falls silent is cut off after `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import struct
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE_SECONDS = 2.0
"""How long a connection may go on carrying bytes before it is ended all the same."""
_QUIET_MILLISECONDS = 20
_LOOK_SECONDS = 0.01
_LAST_SENT, _LAST_RECEIVED = 44, 52
"""Offsets in the kernel's `struct tcp_info` of milliseconds since data went and came, 32 bits."""
_ONE_AT_A_TIME = threading.Lock()


def abort_collectives(device: torch.device, *, force: bool = False) -> None:
    """Make the collectives and waits for the store of this process fail that cannot go on.

    Args:
        device: decides the backend.
        force: also those on whose connections bytes are moving.
    """
    if device.type == "cuda":
        _abort_communicators()
    close_connections(force=force)


def leave_membership(device: torch.device) -> None:
    """Forget all process groups, and what the abandoned step left behind."""
    patient_until = time.monotonic() + PATIENCE_SECONDS
    abort_collectives(device)
    while not close_connections(force=time.monotonic() >= patient_until):
        time.sleep(_LOOK_SECONDS)
    if dist.is_initialized():
        dist.destroy_process_group()
    # Groups are named by a count, in the keys of the store too. Joining that failed half-way has
    # raised it, and torch takes it back only with a group that it destroys.
    dist.distributed_c10d._world.group_count = 0  # noqa: SLF001
    gc.collect()  # models and their hooks refer to each other in circles
    if device.type == "cuda":
        torch.cuda.empty_cache()


def close_connections(*, force: bool) -> bool:
    """End the TCP connections of this process; a rank has none but to its peers and the store.

    Args:
        force: also those on which bytes are moving.

    Returns:
        Whether none is left.
    """
    moving = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # no socket, not connected, or closed meanwhile
            if entry.readlink().as_posix().startswith("socket:"):
                moving += not close_connection(int(entry.name), force=force)
    return moving == 0


def close_connection(descriptor: int, *, force: bool) -> bool:
    """End a TCP connection, unless bytes are moving on it.

    Args:
        descriptor: of anything; what is no TCP connection needs no end.
        force: whether or not bytes are moving.

    Returns:
        False if it goes on.

    Raises:
        OSError: it is no socket, or not connected.
    """
    with _duplicate(descriptor) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return True
        connection.getpeername()  # raises for one that only listens
        if not force and _moving(connection):
            return False
        # an answer to what comes at this very moment may still be written, which must not fail
        connection.shutdown(socket.SHUT_RD)
    return True


def _duplicate(descriptor: int) -> socket.socket:
    """The socket; the descriptor stays its owner's to close."""
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _moving(connection: socket.socket) -> bool:
    """Whether bytes came or went just now, or wait to be read here."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    since = min(struct.unpack_from("=I", info, at)[0] for at in (_LAST_SENT, _LAST_RECEIVED))
    (unread,) = struct.unpack("=i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return since < _QUIET_MILLISECONDS or unread > 0


def _abort_communicators() -> None:
    # Not run on more than one GPU so far. Aborting is unilateral and does not wait for peers, which
    # destroying a communicator with work under way would.
    with _ONE_AT_A_TIME:
        if dist.is_initialized():
            dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public way
