"""Waiting for state to change, without polling and without a lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ChangeNotifier:
    """Rung by whoever changes state; wakes everyone who waits for a condition on it."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.changes = 0

    def notify(self) -> None:
        """Have every waiter look again."""
        self.changes += 1
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait_for(self, look: Callable[[], T | None]) -> T:
        """The first answer of `look` that is not None; asked now and after each ring."""
        while (found := look()) is None:
            await self._rung.wait()
        return found

    async def wait_for_change(self, seconds: float, *, after: int) -> int:
        """Wait for a ring beyond number `after`, so long at most. Returns the rings so far."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait_for(lambda: self.changes if self.changes > after else None)
        except TimeoutError:
            return self.changes
