"""The rendezvous store of an attempt: a process beside the ranks of the leader's pod.

Each attempt has its own store on its own port, so no rank of an earlier attempt can reach it. It
ends when the next attempt begins, or with the pod. It hears the addresses of the record's members
alone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.exit_codes import describe_exit_code
from drumline_agent.host.peer_filter import networks_of
from drumline_agent.processes.output import LineReader, PrefixedOutput, open_line_pipe
from drumline_agent.processes.rank_main import store_request
from drumline_agent.processes.zygote_client import KILL_SECONDS, Child, ZygoteClient
from drumline_contract import STORE_PORTS, GenerationRecord


def peers_of(record: GenerationRecord) -> list[str]:
    """Return the networks from which the members of a record reach its store.

    Members connect from their address of the store's family. A record without IP addresses, which
    no operator makes, has no peers. Its store then accepts everybody.
    """
    ipv6 = ":" in record.store_member.address
    addresses = [member.address for member in record.members if (":" in member.address) == ipv6]
    try:
        return [str(network) for network in networks_of(addresses)]
    except ValueError:
        return []


class AttemptStore(Protocol):
    """The rendezvous store of an attempt."""

    async def open(
        self, address: str, *, peers: Sequence[str], on_end: Callable[[str], None]
    ) -> int:
        """Replace the store of the previous attempt. Return the port of the new store.

        Args:
            address: IP address to bind.
            peers: IP addresses that may connect.
            on_end: called with a message if the store ends.
        """
        ...

    async def close(self) -> None:
        """End the store."""


class FreshPort:
    """The port of the store that rank 0 of a command serves itself, another one each attempt.

    A port of the last attempt may still be held by a connection that waits for its end.
    """

    def __init__(self, *, first_port: int) -> None:
        self._first_port = first_port
        self._opened = 0

    async def open(
        self,
        address: str,  # noqa: ARG002 - rank 0 listens, and where it likes
        *,
        peers: Sequence[str],  # noqa: ARG002 - same
        on_end: Callable[[str], None],  # noqa: ARG002 - the store ends with rank 0
    ) -> int:
        """Take the next port. Returns it.

        Args:
            address: not used, because rank 0 serves the store.
            peers: not used.
            on_end: not used.
        """
        port = self._first_port + self._opened % STORE_PORTS
        self._opened += 1
        return port

    async def close(self) -> None:
        """Do nothing: a port has no state."""


class RendezvousStore:
    """Serves the rendezvous store of an attempt. At most one store runs at a time."""

    def __init__(self, *, zygote: ZygoteClient, first_port: int) -> None:
        self._zygote = zygote
        self._first_port = first_port
        self._opened = 0
        self._child: Child | None = None
        self._reader: LineReader | None = None

    async def open(
        self, address: str, *, peers: Sequence[str], on_end: Callable[[str], None]
    ) -> int:
        """Replace the store of the previous attempt.

        Args:
            address: the store listens on it.
            peers: networks whose connections it accepts. Empty: all networks.
            on_end: called with a reason if the store ends without `close`.

        Returns:
            The port of the store.
        """
        # A new port per attempt: a late rank of the attempt before cannot reach the new store.
        await self.close()
        port = self._first_port + self._opened % STORE_PORTS
        self._opened += 1
        self._reader, output_end = await open_line_pipe(PrefixedOutput("store").line)
        child = self._zygote.fork(
            f"store-{self._opened}",
            store_request(address, port=port, peers=peers),
            descriptors=[output_end],
        )
        self._child = child

        def ended(exited: asyncio.Future[int]) -> None:
            # An intended close clears `_child` first, so this end was not asked for.
            if self._child is child and not self._zygote.gone.done():
                log(AgentEvent.STORE_EXITED, code=exited.result())
                on_end(f"the store ended: {describe_exit_code(exited.result())}")

        child.exited.add_done_callback(ended)
        return port

    async def close(self) -> None:
        """End the store."""
        child, self._child = self._child, None
        if child is not None:
            self._zygote.signal(child, signal.SIGKILL)
            if not child.exited.done():
                await asyncio.wait([child.exited], timeout=KILL_SECONDS)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
