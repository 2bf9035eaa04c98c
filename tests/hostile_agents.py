"""Agents of a hostile image: they accept connections and stay silent, flood, or answer garbage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from drumline_contract import AgentStatus

Behaviour = Callable[["HostileAgent", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HostileAgent:
    """A listener that reads a request's head and then behaves as it is told.

    Args:
        address: loopback address it listens on.
        behaviour: what it does with each connection.
        port: where it listens; 0 lets the system choose.
    """

    def __init__(self, address: str, behaviour: Behaviour, *, port: int = 0) -> None:
        self.address = address
        self.port = port
        self.requests = 0
        self.ended = 0
        """Connections that are over."""
        self._behaviour = behaviour
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_asked(self, times: int) -> None:
        """Return once so many requests have come."""
        async with asyncio.timeout(120), self._changed:
            await self._changed.wait_for(lambda: self.requests >= times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            async with self._changed:
                self.requests += 1
                self._changed.notify_all()
            await self._behaviour(self, reader, writer)
            await writer.drain()
        except OSError:
            pass
        finally:
            self.ended += 1
            self._tasks.discard(task)
            writer.close()


async def silent(
    _agent: HostileAgent, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
) -> None:
    """Accept, and never answer: until the other side gives up."""
    await reader.read()


def answering_with(status: AgentStatus) -> Behaviour:
    """Answer at once with this status."""

    async def behave(
        _agent: HostileAgent, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(answer(status.encode()))

    return behave


def always_news(status: AgentStatus) -> Behaviour:
    """Answer at once, each time with another version and another generation."""

    async def behave(
        agent: HostileAgent, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        news = replace(status, version=agent.requests, generation=agent.requests)
        writer.write(answer(news.encode()))

    return behave


def every_other_time(status: AgentStatus) -> Behaviour:
    """Answer with this status, then with what is none, and so on."""

    async def behave(
        agent: HostileAgent, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(answer(status.encode() if agent.requests % 2 else b"[]"))

    return behave


def garbage(bodies: Iterable[bytes]) -> Behaviour:
    """Answer with these bytes in turn, whatever they are; at last with nothing."""
    remaining = iter(bodies)

    async def behave(
        _agent: HostileAgent, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(next(remaining, b""))

    return behave


def answer(body: bytes) -> bytes:
    """A good answer with this body."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
