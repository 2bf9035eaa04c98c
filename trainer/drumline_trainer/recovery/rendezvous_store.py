"""The server of the rendezvous store (PyTorch's TCPStore), at which the ranks of a gang meet.

With an agent it runs in a process of its own, so the store outlives every rank. It accepts only
addresses of the gang, because the store itself has no authentication.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Sequence
from ipaddress import ip_network

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from drumline_agent.host import peer_filter
from drumline_trainer.recovery.rendezvous import JOIN_TIMEOUT


def serve_store(
    port: int,
    *,
    address: str = "127.0.0.1",
    peers: Sequence[str] = (),
    ready: Callable[[int], None] | None = None,
) -> None:
    """Serve the rendezvous store and never return; for a process of its own.

    Args:
        port: TCP port; 0 lets the kernel choose.
        address: the one address it listens on.
        peers: networks, in addition to loopback, whose connections it accepts. Empty: all networks.
        ready: called with the port once it accepts connections.

    Raises:
        OSError: the port is taken, or this machine does not have the address.
    """
    listener = listen(port, address=address, peers=peers)
    store = store_on(listener)
    if ready is not None:
        ready(store.port)
    threading.Event().wait()


def listen(port: int, *, address: str, peers: Sequence[str] = ()) -> socket.socket:
    """Return a listening socket for `store_on`. Connections wait in its backlog until then.

    If the kernel supports no filter, the socket accepts every address and logs that. The job's
    NetworkPolicy is then the only protection.

    Args:
        port: port to bind. 0: any.
        address: IP address to bind.
        peers: IP addresses that may connect.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        if peers:  # before it listens: no connection waits in the backlog that was not filtered
            _hear_only(listener, peers)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _hear_only(listener: socket.socket, peers: Sequence[str]) -> None:
    try:
        peer_filter.attach(listener, [ip_network(peer) for peer in peers])
    except OSError as error:
        sys.stdout.write(f"the store hears every address: no socket filter here ({error})\n")


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
