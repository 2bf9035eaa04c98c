"""Divide a bounded number of slots among namespaces, so that a slow one delays no other.

A namespace takes a slot only while it holds fewer than are free, as ports share the memory of a
switch (Choudhury and Hahne, "Dynamic queue length thresholds", 1998). One namespace alone gets half
of the slots. Each further one leaves some free, so the next one never waits for those before it.

    128 slots: one busy namespace holds 64, two hold 43 each, three hold 32 each
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Shares:
    """The slots that namespaces hold.

    Args:
        total: number of slots.
    """

    def __init__(self, total: int) -> None:
        self._free = total
        self._held = Counter[str]()

    @property
    def is_exhausted(self) -> bool:
        """Return whether no namespace can take a slot."""
        return self._free <= 0

    def take(self, namespace: str) -> bool:
        """Take a slot. Return False if the namespace must wait."""
        if self._held[namespace] >= self._free:
            return False
        self._held[namespace] += 1
        self._free -= 1
        return True

    def give_back(self, namespace: str) -> None:
        """Give back a slot."""
        self._held[namespace] -= 1
        self._free += 1
        if not self._held[namespace]:
            del self._held[namespace]


class FairSlots:
    """Slots to wait for. The longest waiting namespace that may take one goes first.

    Args:
        total: number of slots.
    """

    def __init__(self, total: int) -> None:
        self._shares = Shares(total)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, namespace: str) -> AsyncGenerator[None]:
        """Wait for a slot of this namespace, and hold it."""
        if namespace in self._waiting or not self._shares.take(namespace):
            await self._wait(namespace)
        try:
            yield
        finally:
            self._give_back(namespace)

    async def _wait(self, namespace: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(namespace)  # the slot came at the moment of the cancellation
            raise

    def _give_back(self, namespace: str) -> None:
        self._shares.give_back(namespace)
        for waiting in list(self._waiting):
            if self._shares.is_exhausted:
                return
            self._serve(waiting)

    def _serve(self, namespace: str) -> None:
        """Give slots to the waiting tasks of one namespace. It then waits behind the others."""
        turns = self._waiting.pop(namespace)
        while turns and (turns[0].cancelled() or self._shares.take(namespace)):
            turn = turns.popleft()
            if not turn.cancelled():
                turn.set_result(None)
                break
        if turns:
            self._waiting[namespace] = turns
