"""Files over a connection: from the page cache to the socket and back, in chunks."""

from __future__ import annotations

import asyncio
from typing import BinaryIO

CHUNK_BYTES = 256 * 1024
IDLE_SECONDS = 20.0
"""A transfer without progress for this many seconds has failed."""
SLOWEST_BYTES_PER_SECOND = 10e6


def transfer_seconds(size: int) -> float:
    """Return the maximum number of seconds that a transfer of `size` bytes may take."""
    return IDLE_SECONDS + size / SLOWEST_BYTES_PER_SECOND


async def send_file(
    writer: asyncio.StreamWriter, *, head: bytes, file: BinaryIO, size: int
) -> None:
    """Write a head, then `size` bytes of the file. Raises OSError.

    Args:
        writer: the connection.
        head: request or status line and headers.
        file: read from its position.
        size: number of bytes.
    """
    writer.write(head)
    await writer.drain()
    if size:
        sent = await asyncio.get_running_loop().sendfile(writer.transport, file, 0, size)
        if sent != size:
            raise OSError(f"the file ended after {sent} of {size} bytes")


async def receive_file(reader: asyncio.StreamReader, *, file: BinaryIO, size: int) -> None:
    """Read exactly `size` bytes into the file. Raises OSError or asyncio.IncompleteReadError.

    Args:
        reader: the connection.
        file: written from its position.
        size: number of bytes.
    """
    left = size
    while left:
        async with asyncio.timeout(IDLE_SECONDS):
            chunk = await reader.read(min(left, CHUNK_BYTES))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", left)
        file.write(chunk)
        left -= len(chunk)
