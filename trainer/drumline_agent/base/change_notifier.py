"""Waiting for state to change, without polling and without a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChangeNotifier:
    """A condition variable of one event loop: a change of state notifies, waiters look again."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.changes = 0
        """Number of notifications so far."""

    def notify(self) -> None:
        """Make every waiter evaluate its predicate again."""
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for(self, predicate: Callable[[], T | None]) -> T:
        """Wait for the first result of `predicate` that is not None.

        It is called now and after each notification.
        """
        while (result := predicate()) is None:
            await self._changed.wait()
        return result

    async def wait_for_change(self, seconds: float, *, after: int) -> int:
        """Wait for a notification beyond number `after`, at most `seconds`.

        Returns:
            The number of notifications so far.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.wait_for(lambda: self.changes if self.changes > after else None)
        except TimeoutError:
            return self.changes
