"""Messages of the clients of this pod's ranks that the leader has not received yet."""

from __future__ import annotations

import asyncio
from collections import deque

from drumline_agent.protocol.client_messages import MAX_SAID, ClientMessages, ConnectionClosed
from drumline_agent.protocol.membership import NO_MEMBERSHIP, Membership
from drumline_client.wire import ClientMessage, StepReport, encode

MAX_WAITING = 4096
"""While the leader cannot be reached; then the oldest are dropped."""


class ClientOutbox:
    """In the order of arrival for each rank; of its reports in a row only the newest."""

    def __init__(self) -> None:
        self._membership = NO_MEMBERSHIP
        self._waiting: deque[tuple[int, ClientMessage | ConnectionClosed]] = deque(
            maxlen=MAX_WAITING
        )
        self._last_reports: dict[int, int] = {}
        """Ranks whose newest message waits and is a report, and its number."""
        self._taken = 0
        self._urgent = asyncio.Event()

    def put(
        self, membership: Membership, rank: int, message: ClientMessage | ConnectionClosed
    ) -> None:
        """Keep a message until it is sent; those of an older membership are dropped.

        Args:
            membership: generation and attempt.
            rank: rank of the client.
            message: the message, or the end of its connection.
        """
        # Messages of an earlier attempt have no receiver any more.
        if membership != self._membership:
            self._membership = membership
            self._clear()
        number = self._last_reports.pop(rank, None)
        position = None if number is None else number - self._taken
        is_report = isinstance(message, StepReport)
        # Only a rank's newest report matters: replace one that still waits.
        if is_report and position is not None and 0 <= position < len(self._waiting):
            self._waiting[position] = (rank, message)
            self._last_reports[rank] = self._taken + position
            return
        # The deque drops its oldest entry, so positions move by one.
        if len(self._waiting) == MAX_WAITING:
            self._taken += 1
        self._waiting.append((rank, message))
        if is_report:
            self._last_reports[rank] = self._taken + len(self._waiting) - 1
        else:
            self._urgent.set()

    async def wait(self, seconds: float) -> None:
        """Wait at most this long for something urgent; steps alone are not."""
        try:
            async with asyncio.timeout(seconds):
                await self._urgent.wait()
        except TimeoutError:
            pass

    def batch(self, *, index: int) -> ClientMessages | None:
        """Take the oldest messages out; None: there are none."""
        self._urgent.clear()
        if not self._waiting:
            return None
        count = min(len(self._waiting), MAX_SAID)
        taken = [self._waiting.popleft() for _ in range(count)]
        self._taken += count
        return ClientMessages(
            index=index,
            generation=self._membership[0],
            attempt=self._membership[1],
            said=[(rank, _line(message)) for rank, message in taken],
        )

    def _clear(self) -> None:
        self._taken += len(self._waiting)
        self._waiting.clear()
        self._last_reports.clear()


def _line(message: ClientMessage | ConnectionClosed) -> str:
    return "" if isinstance(message, ConnectionClosed) else encode(message).decode()
