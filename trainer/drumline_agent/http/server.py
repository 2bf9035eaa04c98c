"""The agent's HTTP listener: one request a connection, bounded in number, size and time.

Connections that are refused or displaced (`connection_limits`) are reset before anything is made
for them: a flood of them must not take the time of the event loop.

Handlers are plain coroutines `Request -> Response`; they never see a socket. The body of a request
below `http_message.FILES` is streamed into a file that its handler names once it knows the head.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Protocol, Self

from drumline_agent.http.file_stream import CHUNK_BYTES, receive_file, send_file, transfer_seconds
from drumline_agent.http.message import (
    FILES_PATH,
    HttpError,
    HttpRequest,
    HttpResponse,
    RequestHead,
    parse_request_head,
)
from drumline_contract import MAX_BODY_BYTES
from drumline_contract.connection_limits import ConnectionLimits, Refused

MAX_CONNECTIONS = 128
RESERVED_CONNECTIONS = 16
"""Connections above MAX_CONNECTIONS for probes only, so that a busy agent does not appear unready.
"""
CONNECTIONS_OF_ADDRESS = 48
"""A member sends copies of its ranks' snapshots beside its heartbeats; the operator has a few."""
BACKLOG = 1024
ACCEPTED_AT_ONCE = 32
"""Connections that are taken from the backlog before anything else of the event loop runs."""
PROBES = ("/healthz", "/readyz")
HEAD_SECONDS = 5.0
BODY_SECONDS = 20.0
"""Time for a body to arrive, and for a response to be sent."""


class UploadHandler(Protocol):
    """Receives uploaded files."""

    def begin(self, head: RequestHead) -> Path:
        """Return the path to which the body is written.

        Raises:
            HttpError: the upload is rejected.
        """
        ...

    def finish(self, head: RequestHead, path: Path) -> HttpResponse:
        """Answer an upload whose body has been written to `path` completely."""
        ...


class HttpServer:
    """A context manager: bound on entry; on exit, requests in progress are still answered.

    Args:
        answer: handles a request.
        address: IP address to bind.
        port: port to bind.
        uploads: handles bodies that are streamed to files.
    """

    def __init__(
        self,
        answer: Callable[[HttpRequest], Awaitable[HttpResponse]],
        *,
        address: str,
        port: int,
        uploads: UploadHandler | None = None,
    ) -> None:
        self._answer = answer
        self._uploads = uploads
        self._address = address
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._limits = ConnectionLimits[asyncio.WriteTransport](
            total=MAX_CONNECTIONS,
            reserve=RESERVED_CONNECTIONS,
            of_address=CONNECTIONS_OF_ADDRESS,
        )
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Bind and listen. Raises OSError when the address is taken."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listener = socket.create_server((self._address, self._port), family=family)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), sock=listener, backlog=ACCEPTED_AT_ONCE
        )
        listener.listen(BACKLOG)  # asyncio takes its `backlog` for both
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop listening, then give open connections a moment to get their answer."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=2.0)
            for task in late:
                task.cancel()

    def admit(self, transport: asyncio.Transport) -> bool | None:
        """Return whether a new connection is crowded. None: it is refused."""
        peer = transport.get_extra_info("peername")
        verdict = self._limits.admit(transport, address=peer[0] if peer else "")
        if isinstance(verdict, Refused):
            return None
        if verdict.displaced is not None:
            verdict.displaced.abort()
        return verdict.crowded

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a closed connection."""
        self._limits.remove(transport)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, crowded: bool
    ) -> None:
        """Answer the request of one connection and close it.

        Args:
            reader: input of the connection.
            writer: output of the connection.
            crowded: whether only reserved connections are free, so that only probes are answered.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._tasks.add(task)
        try:
            response = await self._respond(reader, writer.transport, crowded=crowded)
            await _send(writer, response)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is too slow or has disconnected: there is no one to answer
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _respond(
        self, reader: asyncio.StreamReader, transport: asyncio.WriteTransport, *, crowded: bool
    ) -> HttpResponse:
        try:
            head = await _read_head(reader, crowded=crowded)
            if (
                self._uploads is not None
                and head.method == "PUT"
                and head.path.startswith(FILES_PATH)
            ):
                path = self._uploads.begin(head)  # checks the signature
                self._limits.has_request(transport)
                return await _take_file(reader, transport, head, uploads=self._uploads, path=path)
            request = await _read_body(reader, head)
            self._limits.has_request(transport)
            return await self._answer(request)
        except HttpError as error:
            return HttpResponse(
                status=error.status, body=error.reason.encode(), content_type="text/plain"
            )


class _Connection(asyncio.StreamReaderProtocol):
    """A connection that is served if it is admitted, and reset before it costs anything if not."""

    def __init__(self, server: HttpServer) -> None:
        self._http = server
        self._crowded = False
        loop = asyncio.get_running_loop()
        super().__init__(asyncio.StreamReader(limit=CHUNK_BYTES, loop=loop), self._serve, loop=loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP listener
        self._admitted = transport
        crowded = self._http.admit(transport)
        if crowded is None:
            transport.abort()
            return
        self._crowded = crowded
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.remove(self._admitted)
        super().connection_lost(exc)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._http.serve(reader, writer, crowded=self._crowded)


async def _read_head(reader: asyncio.StreamReader, *, crowded: bool) -> RequestHead:
    async with asyncio.timeout(HEAD_SECONDS):
        try:
            block = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large") from None
    head = parse_request_head(block)
    if crowded and head.path not in PROBES:
        raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
    return head


async def _read_body(reader: asyncio.StreamReader, head: RequestHead) -> HttpRequest:
    if head.content_length > MAX_BODY_BYTES:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "this path takes no files")
    async with asyncio.timeout(BODY_SECONDS):
        body = await reader.readexactly(head.content_length)
    return HttpRequest(method=head.method, path=head.path, headers=head.headers, body=body)


async def _take_file(
    reader: asyncio.StreamReader,
    transport: asyncio.BaseTransport,
    head: RequestHead,
    *,
    uploads: UploadHandler,
    path: Path,
) -> HttpResponse:
    try:
        with path.open("wb") as file:
            await receive_file(reader, transport, file=file, size=head.content_length)
        return uploads.finish(head, path)
    except BaseException:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - a file in memory
        raise


async def _send(writer: asyncio.StreamWriter, response: HttpResponse) -> None:
    if response.file is None:
        writer.write(response.encode())
        async with asyncio.timeout(BODY_SECONDS):
            await writer.drain()
        return
    with response.file as file:
        async with asyncio.timeout(transfer_seconds(response.file_bytes)):
            await send_file(writer, head=response.encode(), file=file, size=response.file_bytes)
