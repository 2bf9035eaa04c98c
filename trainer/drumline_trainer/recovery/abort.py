"""Leaving broken collectives without ending the process.

Nothing here waits for a peer. torch cannot cancel a Gloo operation that waits for a silent peer
(its `abort` has no effect on it), but the operation fails at once when its connection is closed:
`close_connections` closes those of this process, which also ends the waits of its peers. NCCL's
communicators are aborted. Both may be called from another thread than the one that waits.

Gloo has a gap: an operation whose bytes are in flight when its connection is closed gets no error
and waits until its own timeout, minutes later, here or in the peer. So a connection is closed only
once no byte has moved on it for a moment: bytes in flight arrive, and an operation that still waits
then waits for a peer that has not begun. A connection that never falls silent is closed after
`PATIENCE_SECONDS`.
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
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE_SECONDS = 2.0
"""Maximum time for which a connection that carries bytes is kept open."""
_QUIET_MILLISECONDS = 20
_LOOK_SECONDS = 0.01
_LAST_SENT, _LAST_RECEIVED = 44, 52
"""Offsets in the kernel's `struct tcp_info` of milliseconds since data went and came, 32 bits."""
_ABORT_LOCK = threading.Lock()


def abort_collectives(*, force: bool = False) -> None:
    """Fail the collectives and store operations of this process that wait for a peer.

    Args:
        force: also those on whose connections bytes are moving.
    """
    _abort_communicators()
    close_connections(force=force)


def leave_membership(device: torch.device) -> None:
    """Destroy all process groups, and free what the abandoned step has allocated."""
    patient_until = time.monotonic() + PATIENCE_SECONDS
    abort_collectives()
    while not close_connections(force=time.monotonic() >= patient_until):
        time.sleep(_LOOK_SECONDS)
    if dist.is_initialized():
        dist.destroy_process_group()
    # Groups are named by a count, in the keys of the store too. Joining that failed half-way has
    # raised it, and torch takes it back only with a group that it destroys.
    world = dist.distributed_c10d._world  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - see above
    world.group_count = 0
    gc.collect()  # models and their hooks refer to each other in circles
    if device.type == "cuda":
        torch.cuda.empty_cache()


def close_connections(*, force: bool) -> bool:
    """Close the TCP connections of this process: those to its peers and the store.

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
    """Close a TCP connection, unless bytes are moving on it.

    Args:
        descriptor: any descriptor. It is closed only if it is a TCP connection.
        force: whether or not bytes are moving.

    Returns:
        False if it is still open.

    Raises:
        OSError: it is not a socket, or not connected.
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
    """Return a socket for a duplicate of the descriptor. The owner still closes the original."""
    duplicate = os.dup(descriptor)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _moving(connection: socket.socket) -> bool:
    """Return whether bytes were just sent or received, or wait to be read here."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    since = min(struct.unpack_from("=I", info, at)[0] for at in (_LAST_SENT, _LAST_RECEIVED))
    (unread,) = struct.unpack("=i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return since < _QUIET_MILLISECONDS or unread > 0


def _abort_communicators() -> None:
    with _ABORT_LOCK:
        # Gloo's abort has no effect, and torch would forget its groups while they are waited for
        if dist.is_initialized() and dist.get_backend() != dist.Backend.GLOO:
            _abort_groups()


def _abort_groups() -> None:
    """Abort all groups, and have torch forget them. Waits for no peer.

    Not run on more than one GPU so far. Communicators that are aborted one by one wait for each
    other's kernels (pytorch/pytorch#119797): NCCL is given all aborts as one group. torch's own
    `_abort_process_group` begins that by `_coalescing_manager`, which takes a collective that the
    training thread calls meanwhile for one of the group: the call returns with nothing computed,
    and the abort raises.
    """
    world = dist.distributed_c10d._world  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - torch has no public way
    default = dist.distributed_c10d._get_default_group()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
    names = dict(world.pg_names)
    with _one_group(default):
        for group in sorted(names, key=names.__getitem__, reverse=True):
            group.abort()
    world.pg_names.clear()  # nothing is left to shut down
    dist.destroy_process_group()


@contextmanager
def _one_group(default: dist.ProcessGroup) -> Generator[None]:
    """Put `ncclGroupStart` and `ncclGroupEnd` around this thread's work if the backend has them."""
    device = torch.accelerator.current_accelerator(check_available=True)
    backend = None if device is None else default._get_backend(device)  # noqa: SLF001 - as torch does
    if device is None or not getattr(backend, "supports_coalescing", False):
        yield
        return
    default._start_coalescing(device)  # noqa: SLF001 - as torch does
    try:
        yield
    finally:
        default._end_coalescing(device)  # noqa: SLF001 - as torch does
