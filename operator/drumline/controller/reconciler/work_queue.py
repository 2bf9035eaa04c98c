"""A queue of keys: each key once, never held by two workers, repeated after a failure.

It has the contract of client-go's work queue. A key that is added while a worker holds it is handed
out again when that worker is done. So no event is lost, and none is handled twice at a time.
Failures back off exponentially for each key, until `forget`.

Namespaces take turns, and share the workers (`kube.shares`): the keys of one whose writes take long
leave workers to the others.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

from drumline.kube.shares import Shares

WORKERS: Final = 64
"""Reconciles wait for the API server most of the time. One namespace gets 32 at most."""
BASE_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 60.0
_SLACK = 64
"""Most outdated delays that are kept until they are over."""


class WorkQueue:
    """Keys that wait for a worker. For one event loop.

    Args:
        clock: monotonic seconds.
        workers: number of workers.
    """

    def __init__(self, *, clock: Callable[[], float], workers: int = WORKERS) -> None:
        self._clock = clock
        self._ready: dict[str, deque[str]] = {}
        """Ready keys by namespace, in the order of their turns."""
        self._workers = Shares(workers)
        self._waiting: set[str] = set()
        self._held: set[str] = set()
        self._again: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str) -> None:
        """Hand out `key` as soon as a worker is free."""
        if key in self._held:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.setdefault(_namespace(key), deque()).append(key)
            self._idle.clear()
            self._wake.set()

    def add_after(self, key: str, delay_seconds: float) -> None:
        """Hand out `key` after a delay. The shortest of several delays counts."""
        due = self._clock() + max(0.0, delay_seconds)
        if self._due.get(key, due + 1) > due:
            self._due[key] = due
            heapq.heappush(self._later, (due, key))
            self._wake.set()

    def retry(self, key: str) -> float:
        """Hand out `key` after its next backoff. Return the backoff in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(MAX_BACKOFF_SECONDS, BASE_BACKOFF_SECONDS * 2 ** min(count, 16))
        self.add_after(key, delay)
        return delay

    def forget(self, key: str) -> None:
        """Reset the backoff of a key that was handled without failure."""
        self._failures.pop(key, None)

    def drop(self, key: str) -> None:
        """Forget the delays and failures of a key that no object has any more."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
        # A heap cannot remove entries from its middle, so rebuild it when most are outdated.
        if len(self._later) > _SLACK + 2 * len(self._due):  # entries without a key that is due
            self._later = [(due, key) for key, due in self._due.items()]
            heapq.heapify(self._later)

    async def get(self) -> str:
        """Return the next key. The worker holds it until `done`."""
        while True:
            self._promote()
            if (key := self._next()) is not None:
                self._waiting.discard(key)
                self._held.add(key)
                return key
            # Nothing may go: wait for a new key, a free worker, or the next delay to end.
            self._wake.clear()
            delay = self._later[0][0] - self._clock() if self._later else None
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: str) -> None:
        """Release `key`. It is handed out again if it was added meanwhile."""
        if key in self._held:
            self._held.discard(key)
            self._workers.give_back(_namespace(key))
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        if self._ready:
            self._wake.set()
        elif not self._held:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no key is ready or held. Keys that are due later do not count."""
        await self._idle.wait()

    def _next(self) -> str | None:
        """Return the next ready key of a namespace that gets a worker, or None."""
        for namespace in self._ready:
            if self._workers.take(namespace):
                keys = self._ready.pop(namespace)
                key = keys.popleft()
                if keys:
                    self._ready[namespace] = keys  # behind the others
                return key
        return None

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, key = heapq.heappop(self._later)
            if self._due.get(key) == due:  # else a shorter delay has overtaken this entry
                del self._due[key]
                self.add(key)
        if self._ready:
            self._wake.set()


def _namespace(key: str) -> str:
    return key.partition("/")[0]
