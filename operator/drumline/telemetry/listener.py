"""Serve an application to anyone who reaches the port, with bounded connections.

aiohttp keeps a connection that sends nothing for an hour, and takes as many as there are file
descriptors. Probes would then find no server, and the kubelet would restart the process. So a
connection is closed after some time without a whole request, which is also the time for an answer
to be sent. `connection_limits` chooses which connections stay when there are too many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from drumline_contract.connection_limits import ConnectionLimits, Refused

_KEPT_ALIVE: Final = 2 / 3
"""Share of the waiting time after which an idle connection is closed in good order."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one listener."""

    total: int = 256
    """Maximum number of open connections."""
    of_address: int = 192
    """Maximum per address. Many people may come through one proxy."""
    waiting_seconds: float = 30.0
    """Time for a request to arrive, and for an answer to be sent."""


_BOUNDS: Final = Bounds()


class _OfClients(logging.Filter):
    """Filter of aiohttp's log: anybody could fill it with malformed requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop what a malformed request caused. It may also quote a token."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


_LOGGER: Final = logging.getLogger("drumline.telemetry.listener")
_LOGGER.addFilter(_OfClients())


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str,
    port: int,
    stop_seconds: float = 60.0,
    bounds: Bounds = _BOUNDS,
) -> AsyncGenerator[int]:
    """Listen until the context ends, and yield the port.

    Requests are not logged, because addresses contain names. Handlers are cancelled when the
    client disconnects. Bodies are not decompressed.

    Args:
        app: the application.
        host: address to bind.
        port: port to bind. 0: any.
        stop_seconds: time for open requests at the end.
        bounds: limits of the connections.

    Raises:
        OSError: the port is taken.
    """
    connections = _Connections(bounds)
    app.middlewares.insert(0, connections.noted)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_LOGGER,
        handler_cancellation=True,
        keepalive_timeout=bounds.waiting_seconds * _KEPT_ALIVE,
        auto_decompress=False,
        shutdown_timeout=stop_seconds,
    )
    await runner.setup()
    # `setup` has started the server, so it is cleaned up in every case.
    try:
        server = runner.server
        assert server is not None  # noqa: S101 - of a runner that is set up
        listener = await asyncio.get_running_loop().create_server(
            lambda: _BoundedConnection(connections, server=server), host, port
        )
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()


async def body_of(request: web.Request) -> bytes:
    """Return the body. Only then does its connection count as one with a request.

    Raises:
        HTTPException: the body is too large.
    """
    body = await request.read()
    if _CONNECTIONS in request:
        request[_CONNECTIONS].has_request(request)
    return body


class _Connections:
    """The open connections of one listener, and the time for which each may still wait."""

    def __init__(self, bounds: Bounds) -> None:
        self._limits = ConnectionLimits[asyncio.WriteTransport](
            total=bounds.total, reserve=0, of_address=bounds.of_address
        )
        self._waiting_seconds = bounds.waiting_seconds
        self._timers: dict[asyncio.WriteTransport, asyncio.TimerHandle] = {}

    def admit(self, transport: asyncio.WriteTransport) -> bool:
        """Return whether a new connection is kept."""
        peer = transport.get_extra_info("peername")
        verdict = self._limits.admit(transport, address=peer[0] if peer else "")
        if isinstance(verdict, Refused):
            return False
        if verdict.displaced is not None:
            verdict.displaced.abort()
        self._start_timer(transport)
        return True

    def remove(self, transport: asyncio.WriteTransport) -> None:
        """Forget a closed connection."""
        self._stop_timer(transport)
        self._limits.remove(transport)

    def has_request(self, request: web.Request) -> None:
        """Keep the connection while its request is answered."""
        transport = request.transport
        if transport is not None:
            self._stop_timer(transport)
            self._limits.has_request(transport)

    @web.middleware
    async def noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Take note of a request and of its answer."""
        transport = request.transport
        request[_CONNECTIONS] = self
        if not request.can_read_body:
            self.has_request(request)
        try:
            return await handler(request)
        finally:
            # The time to send the answer begins, unless the connection was closed meanwhile.
            if transport is not None and request.transport is transport:
                self._limits.waits_again(transport)
                self._start_timer(transport)

    def _start_timer(self, transport: asyncio.WriteTransport) -> None:
        self._stop_timer(transport)
        loop = asyncio.get_running_loop()
        self._timers[transport] = loop.call_later(self._waiting_seconds, transport.abort)

    def _stop_timer(self, transport: asyncio.WriteTransport) -> None:
        timer = self._timers.pop(transport, None)
        if timer is not None:
            timer.cancel()


_CONNECTIONS: Final = web.RequestKey("connections", _Connections)


class _BoundedConnection(asyncio.Protocol):
    """A connection that aiohttp serves if it is admitted, and that is reset at once if not."""

    def __init__(self, connections: _Connections, *, server: web.Server) -> None:
        self._connections = connections
        self._server = server
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Transports of uvloop have the methods, and are of no class of asyncio.
        connection = cast("asyncio.WriteTransport", transport)
        if not self._connections.admit(connection):
            connection.abort()
            return
        self._transport = connection
        self._inner = self._server()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None and self._transport is not None:
            self._connections.remove(self._transport)
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
