"""Free TCP ports that no other start of a cluster takes meanwhile.

A port is free until its server binds it, seconds after it was chosen on a busy machine. So whoever
chooses one holds a lock on it until then: a file in the cache for each port, which every process of
this user sees, and which is released when its holder ends in whatever way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from pathlib import Path
from typing import Self

from tools.cluster.cache import cache_dir
from tools.cluster.model import ClusterError

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below what the kernel hands to outgoing connections."""


class ReservedPorts:
    """A context manager: ports that it gave are nobody else's until it is left.

    Args:
        folder: where the locks are.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_dir() / "ports"
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def take(self) -> int:
        """A port that nobody listens on and nobody else has reserved.

        Raises:
            ClusterError: there is none.
        """
        for port in random.SystemRandom().sample(_PORTS, 500):
            if self._reserve(port):
                return port
        raise ClusterError(f"no free TCP ports from {_PORTS.start} to {_PORTS.stop} on {LOOPBACK}")

    def _reserve(self, port: int) -> bool:
        lock = os.open(self._folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError:  # reserved, or in use
            os.close(lock)
            return False
        self._locks.callback(os.close, lock)
        return True


def free_ports(count: int) -> list[int]:
    """Ports that are free now, for whoever binds them at once."""
    with ReservedPorts() as ports:
        return [ports.take() for _ in range(count)]
