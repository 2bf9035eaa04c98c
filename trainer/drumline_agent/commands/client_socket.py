"""The socket of a pod's agent for the clients of its ranks (`drumline_client`).

Input is untrusted. A line is bounded before it is read. A malformed message closes the connection,
and so does a client that does not read. A client that sends too much is not read for a moment: it
then blocks in its own writes and costs the agent nothing. A rank is never delayed, because the
client communicates in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from drumline_agent.commands.token_bucket import TokenBucket
from drumline_client.wire import (
    MAX_LINE_BYTES,
    AgentMessage,
    ClientMessage,
    WireError,
    decode_client_message,
    encode,
)

LINES_PER_SECOND = 50
"""A client of ours says two, and a few around a save."""
BURST_LINES = 200
READ_PAUSE_SECONDS = 0.2
"""Pause in reading from a client that has used up its allowance."""
MIN_CONNECTIONS = 32
CONNECTIONS_PER_RANK = 4
"""A rank that connects again may still be seen under its former connection."""
MAX_UNREAD_BYTES = 64 * 1024
"""Written to a client that does not read."""


class ClientConnection(asyncio.Protocol):
    """One process that has connected.

    Args:
        admit: whether to accept the connection.
        on_message: called for each message.
        on_closed: called at the end of the connection.
    """

    def __init__(
        self,
        *,
        admit: Callable[[ClientConnection], bool],
        on_message: Callable[[ClientConnection, ClientMessage], None],
        on_closed: Callable[[ClientConnection], None],
    ) -> None:
        self._admit = admit
        self._on_message = on_message
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._lines: deque[bytes] = deque()
        """Whole lines that its allowance has not covered yet: of one read at most."""
        self._allowance = TokenBucket(per_second=LINES_PER_SECOND, burst=BURST_LINES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bound the write buffer, and close the connection if it is not admitted."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        if not self._admit(self):
            self.close()

    def data_received(self, data: bytes) -> None:
        """Act on each whole line; anything else than messages closes the connection."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        # Before it is whole: a line without an end must not grow in memory.
        if len(self._unread) > MAX_LINE_BYTES:
            self.close()
            return
        self._lines.extend(lines)
        self._read_lines()

    def _read_lines(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # `_on_message` may close the connection in the middle of a batch.
            while self._lines and not self.closed:
                if not self._allowance.take(now=loop.time()):
                    self._pause(loop)
                    return
                message = decode_client_message(self._lines.popleft())
                if message is not None:
                    self._on_message(self, message)
        except WireError:
            self.close()

    def _pause(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._transport is not None:
            # The kernel's buffer fills, so the client blocks in its own writes.
            self._transport.pause_reading()
            loop.call_later(READ_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self._read_lines()

    def pause_writing(self) -> None:
        """Close the connection: the client does not read."""
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        """Notify the owner that one end has closed the connection."""
        self._transport = None
        self._on_closed(self)

    @property
    def closed(self) -> bool:
        """True if nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    def send(self, message: AgentMessage) -> None:
        """Write a message, if it is open."""
        if self._transport is not None and not self.closed:
            self._transport.write(encode(message))

    def refuse(self, message: AgentMessage) -> None:
        """Write a last message and close."""
        self.send(message)
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class ClientSocket:
    """Listens at a path of the pod."""

    def __init__(
        self,
        path: Path,
        *,
        ranks: int,
        on_message: Callable[[ClientConnection, ClientMessage], None],
        on_closed: Callable[[ClientConnection], None],
    ) -> None:
        """Make a socket that is not open yet.

        Args:
            path: at most 107 bytes long, in a writable folder.
            ranks: ranks of the pod; bounds the connections.
            on_message: called with each message.
            on_closed: called once a connection is closed.
        """
        self._path = path
        self._limit = max(MIN_CONNECTIONS, CONNECTIONS_PER_RANK * ranks)
        self._on_message = on_message
        self._on_closed = on_closed
        self._server: asyncio.Server | None = None
        self._connections: set[ClientConnection] = set()

    async def open(self) -> None:
        """Listen. Raises OSError: the folder is missing or full, or the path too long."""
        self._path.unlink(missing_ok=True)  # of a container that ran here before
        before = os.umask(0o177)  # from the first moment on for this user alone
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                self._connection, path=str(self._path)
            )
        finally:
            os.umask(before)

    def hang_up(self) -> None:
        """Close every connection: the ranks of an attempt are gone."""
        for connection in list(self._connections):
            connection.close()

    def close(self) -> None:
        """Stop listening."""
        self.hang_up()
        if self._server is not None:
            self._server.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _connection(self) -> ClientConnection:
        return ClientConnection(
            admit=self._admit, on_message=self._on_message, on_closed=self._forget
        )

    def _admit(self, connection: ClientConnection) -> bool:
        if len(self._connections) >= self._limit:
            return False
        self._connections.add(connection)
        return True

    def _forget(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self._on_closed(connection)
