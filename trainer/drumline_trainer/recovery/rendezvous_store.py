"""The server of the rendezvous store (torch's TCPStore), which the ranks of a gang meet at.

With an agent it runs in a process of its own, so the store outlives every rank.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from drumline_trainer.recovery.rendezvous import JOIN_TIMEOUT


def serve_store(
    port: int, *, address: str = "127.0.0.1", ready: Callable[[int], None] | None = None
) -> None:
    """Serve the rendezvous store and never return; for a process of its own.

    Args:
        port: TCP port; 0 lets the kernel choose.
        address: the one address it listens on.
        ready: called with the port once it accepts connections.

    Raises:
        OSError: the port is taken or the address is not this machine's.
    """
    listener = listen(port, address=address)
    store = store_on(listener)
    if ready is not None:
        ready(store.port)
    threading.Event().wait()


def listen(port: int, *, address: str) -> socket.socket:
    """A listening socket for `store_on`; connections wait in its backlog until then."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=1024)


def store_on(listener: socket.socket) -> TCPStore:
    """Serve a store on the socket, in a thread of this process, while the result is referenced."""
    address, port = listener.getsockname()[:2]
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=JOIN_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
