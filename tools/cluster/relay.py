"""The only way into a cluster's network: 127.0.0.1:PORT here is one address in there.

A process opens its listening socket in this machine's network namespace, then moves itself into
the cluster's: a socket stays where it was made, so it accepts here and connects from there. Run as
a script: `relay.py PORT NAMESPACE ADDRESS:PORT`. Standard library only, started with `python -I`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys

_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 1 << 16


def main(port: int, netns: str, target: str) -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    enter(f"/run/netns/{netns}")
    host, _, target_port = target.rpartition(":")
    asyncio.run(serve(listener, host=host, port=int(target_port)))


def enter(namespace: str) -> None:
    """Move this thread into a network namespace (os.setns needs Python 3.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)


async def serve(listener: socket.socket, *, host: str, port: int) -> None:
    """Pass bytes both ways for everyone who connects; one side may end before the other."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the far side is gone: so is this one
            far_reader, far_writer = await asyncio.open_connection(host, port)
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            far_writer.close()
        writer.close()

    server = await asyncio.start_server(accept, sock=listener)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
