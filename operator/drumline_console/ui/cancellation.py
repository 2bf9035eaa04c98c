"""Work that goes on when its browser has gone: a write, a computation in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Its result; whoever is cancelled meanwhile is cancelled only once the work has ended.

    So half of a change is never left undone, and what waits for a thread to be free waits for it.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
