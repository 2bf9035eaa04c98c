"""Bounded work for many callers: few at a time, and one caller's turn after another's.

A caller with many requests waits behind their own requests alone:

    at_once=2, a asks three times, then b asks once  ->  a, a run; then b; then a
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from drumline_cli.errors import Busy

_BUSY: Final = "Too many requests wait for their turn; try again in a moment."


class FairTurns:
    """Turns for callers.

    Args:
        at_once: number of turns at a time.
        at_once_each: those of one caller.
        waiting: number of requests that wait.
        waiting_each: those of one caller.
    """

    def __init__(self, *, at_once: int, at_once_each: int, waiting: int, waiting_each: int) -> None:
        self._at_once = at_once
        self._at_once_each = at_once_each
        self._waiting = waiting
        self._waiting_each = waiting_each
        self._running = Counter[str]()
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        """In the order of their next turns; none is empty."""

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncGenerator[None]:
        """Wait for a turn and hold it.

        Raises:
            Busy: too many requests wait, or another caller with fewer has taken the place.
        """
        place = self._join(caller)
        self._start()
        # A free turn starts at once, without another iteration of the loop.
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                # The place may still be in the line, or it may have become a turn.
                self._leave(caller, place)
            elif place.exception() is None:  # the turn came with the cancellation
                self._end(caller)
            raise
        try:
            yield
        finally:
            self._end(caller)

    def _join(self, caller: str) -> asyncio.Future[None]:
        # A caller's own limit comes first, so one caller cannot fill the line.
        mine = len(self._lines.get(caller, ()))
        if mine >= self._waiting_each:
            raise Busy(_BUSY)
        if sum(map(len, self._lines.values())) >= self._waiting:
            # who has most requests waiting gives the newest one up
            longest = max(self._lines, key=lambda each: len(self._lines[each]))
            if len(self._lines[longest]) <= mine + 1:
                raise Busy(_BUSY)
            self._lines[longest].pop().set_exception(Busy(_BUSY))
        place = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(place)
        return place

    def _leave(self, caller: str, place: asyncio.Future[None]) -> None:
        line = self._lines.get(caller, deque())
        if place in line:
            line.remove(place)
            if not line:
                del self._lines[caller]

    def _start(self) -> None:
        while self._running.total() < self._at_once:
            # Callers are in the order of their next turns.
            free = (each for each in self._lines if self._running[each] < self._at_once_each)
            caller = next(free, None)
            if caller is None:
                return
            line = self._lines.pop(caller)
            place = line.popleft()
            if line:
                self._lines[caller] = line  # behind all others
            if not place.done():  # cancelled a moment ago
                self._running[caller] += 1
                place.set_result(None)

    def _end(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._start()
