"""Files over a connection: from the page cache to the socket and back, in chunks."""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO

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


async def receive_file(
    reader: asyncio.StreamReader, transport: asyncio.BaseTransport, *, file: BinaryIO, size: int
) -> None:
    """Read exactly `size` bytes into the file.

    Args:
        reader: the connection's bytes that have arrived.
        transport: the connection.
        file: written from its position.
        size: number of bytes.

    Raises:
        OSError: the connection or the file failed, or nothing came for `IDLE_SECONDS`.
        asyncio.IncompleteReadError: the peer has closed the connection.
    """
    if not size:
        return
    async with asyncio.timeout(IDLE_SECONDS):
        chunk = await reader.read(size)  # all that has arrived: the reader is empty then
    if not chunk:
        raise asyncio.IncompleteReadError(b"", size)
    file.write(chunk)
    left = size - len(chunk)
    if left and reader.at_eof():
        raise asyncio.IncompleteReadError(b"", left)
    # A reader would copy every further byte three times.
    if left:
        await _Sink(transport, file=file, left=left).finish()


class _Sink(asyncio.BufferedProtocol):
    """Takes a connection from its protocol, writes bytes to a file, and gives it back."""

    def __init__(self, transport: asyncio.BaseTransport, *, file: BinaryIO, left: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._protocol: Any = transport.get_protocol()
        self._file = file
        self._left = left
        self._buffer = memoryview(bytearray(min(CHUNK_BYTES, left)))
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._progress_at = self._loop.time()
        transport.set_protocol(self)

    async def finish(self) -> None:
        """Wait for the last byte. Raises like `receive_file`."""
        try:
            while not self._done.done():
                idle = self._loop.time() - self._progress_at
                if idle >= IDLE_SECONDS:
                    raise TimeoutError
                await asyncio.wait([self._done], timeout=IDLE_SECONDS - idle)
            self._done.result()
        finally:
            self._end(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's interface
        return self._buffer[: self._left]

    def buffer_updated(self, nbytes: int) -> None:
        self._progress_at = self._loop.time()
        try:
            self._file.write(self._buffer[:nbytes])
        except OSError as error:
            self._end(error)
            return
        self._left -= nbytes
        if not self._left:
            self._end(None)

    def eof_received(self) -> bool | None:
        self._end(asyncio.IncompleteReadError(b"", self._left))
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or asyncio.IncompleteReadError(b"", self._left))
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _end(self, error: Exception | None) -> None:
        """Give the connection back. No byte behind the file may reach this object."""
        if self._transport.get_protocol() is self:
            self._transport.set_protocol(self._protocol)
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
