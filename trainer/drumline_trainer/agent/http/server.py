"""The agent's HTTP listener: one request a connection, bounded in number, size and time.

Handlers are plain coroutines `Request -> Response`; they never see a socket. The body of a request
below `http_message.FILES` is streamed into a file that its handler names once it knows the head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from drumline_trainer.agent.http.file_stream import (
    CHUNK_BYTES,
    receive_file,
    send_file,
    transfer_seconds,
)
from drumline_trainer.agent.http.message import (
    FILES_PATH,
    HttpError,
    HttpRequest,
    HttpResponse,
    RequestHead,
    parse_request_head,
)
from drumline_trainer.contract import MAX_BODY_BYTES

MAX_CONNECTIONS = 128
RESERVED_CONNECTIONS = 16
"""Beyond MAX_CONNECTIONS, only for probes: a busy agent must not appear unready."""
PROBES = ("/healthz", "/readyz")
HEAD_SECONDS = 5.0
BODY_SECONDS = 20.0
"""Time for a body to arrive, and for a response to be sent."""


class UploadHandler(Protocol):
    """Receives uploaded files."""

    def begin(self, head: RequestHead) -> Path:
        """Where to write the body. Raises HttpError to reject it."""
        ...

    def finish(self, head: RequestHead, path: Path) -> HttpResponse:
        """The body has been written to `path` completely."""
        ...


class HttpServer:
    """A context manager: bound on entry; on exit, requests in progress are still answered."""

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
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Bind and listen. Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(
            self._serve, self._address, self._port, limit=CHUNK_BYTES, backlog=1024
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
            writer.write(HttpResponse(status=HTTPStatus.SERVICE_UNAVAILABLE).encode())
            writer.close()
            return
        self._connections.add(task)
        try:
            response = await self._respond(reader, crowded=open_now >= MAX_CONNECTIONS)
            await _send(writer, response)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is too slow or has disconnected: there is no one to answer
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, *, crowded: bool) -> HttpResponse:
        try:
            head = await _read_head(reader, crowded=crowded)
            if (
                self._uploads is not None
                and head.method == "PUT"
                and head.path.startswith(FILES_PATH)
            ):
                return await _take_file(reader, head, self._uploads)
            return await self._answer(await _read_body(reader, head))
        except HttpError as error:
            return HttpResponse(
                status=error.status, body=error.reason.encode(), content_type="text/plain"
            )


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
    reader: asyncio.StreamReader, head: RequestHead, uploads: UploadHandler
) -> HttpResponse:
    path = uploads.begin(head)
    try:
        with path.open("wb") as file:
            await receive_file(reader, file=file, size=head.content_length)
        return uploads.finish(head, path)
    except BaseException:
        path.unlink(missing_ok=True)
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
