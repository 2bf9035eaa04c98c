"""One HTTP request to another agent, bounded in size and time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from drumline_trainer.agent.http_message import (
    MAX_HEAD_BYTES,
    HttpError,
    Request,
    Response,
    parse_response_head,
)

REQUEST_SECONDS = 5.0


class Unreachable(Exception):  # noqa: N818 - a state of the peer, named as the log names it
    """No whole answer came: refused, reset, too slow or malformed."""


async def fetch(request: Request, *, address: str, port: int) -> Response:
    """Send one request and read its answer.

    Raises:
        Unreachable: no whole answer within REQUEST_SECONDS.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await _exchange(request, address=address, port=port)
    except (
        OSError,  # TimeoutError is one
        HttpError,
        asyncio.IncompleteReadError,
        asyncio.LimitOverrunError,
    ) as error:
        raise Unreachable(f"{address}: {type(error).__name__}: {error}") from None


async def _exchange(request: Request, *, address: str, port: int) -> Response:
    reader, writer = await asyncio.open_connection(address, port, limit=MAX_HEAD_BYTES)
    try:
        host = f"[{address}]" if ":" in address else address
        writer.write(request.encode(host=f"{host}:{port}"))
        await writer.drain()
        block = await reader.readuntil(b"\r\n\r\n")
        status, headers, length = parse_response_head(block)
        body = await reader.readexactly(length)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return Response(status=status, body=body, headers=headers)
