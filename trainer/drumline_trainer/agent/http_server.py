"""The agent's HTTP listener: one request a connection, bounded in number, size and time.

Handlers are plain coroutines `Request -> Response`; they never see a socket.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

from drumline_trainer.agent.http_message import (
    MAX_HEAD_BYTES,
    HttpError,
    Request,
    Response,
    parse_request_head,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

MAX_CONNECTIONS = 128
RESERVED_CONNECTIONS = 16
"""Beyond MAX_CONNECTIONS, for probes alone: a busy agent is not an unready one."""
PROBES = ("/healthz", "/readyz")
HEAD_SECONDS = 5.0
BODY_SECONDS = 20.0
"""Time for a body to arrive, and for a response to be taken."""


class HttpServer:
    """A context manager: bound on entry; on exit, requests under way are still answered."""

    def __init__(
        self, answer: Callable[[Request], Awaitable[Response]], *, address: str, port: int
    ) -> None:
        self._answer = answer
        self._address = address
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Bind and listen. Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(
            self._serve, self._address, self._port, limit=MAX_HEAD_BYTES, backlog=1024
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening, then give open connections a moment to get their answer."""
        if self._server is not None:
            self._server.close()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=2.0)
            for task in late:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        open_now = len(self._connections)
        if task is None or open_now >= MAX_CONNECTIONS + RESERVED_CONNECTIONS:
            writer.write(Response(status=HTTPStatus.SERVICE_UNAVAILABLE).encode())
            writer.close()
            return
        self._connections.add(task)
        try:
            response = await self._respond(reader, crowded=open_now >= MAX_CONNECTIONS)
            writer.write(response.encode())
            async with asyncio.timeout(BODY_SECONDS):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is too slow or has gone: nobody is there to be told
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, *, crowded: bool) -> Response:
        try:
            return await self._answer(await _read_request(reader, crowded=crowded))
        except HttpError as error:
            return Response(
                status=error.status, body=error.reason.encode(), content_type="text/plain"
            )


async def _read_request(reader: asyncio.StreamReader, *, crowded: bool) -> Request:
    async with asyncio.timeout(HEAD_SECONDS):
        try:
            block = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large") from None
    head = parse_request_head(block)
    if crowded and head.path not in PROBES:
        raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
    async with asyncio.timeout(BODY_SECONDS):
        body = await reader.readexactly(head.content_length)
    return Request(method=head.method, path=head.path, headers=head.headers, body=body)
