"""Finish work whose browser has disconnected: a write, a computation in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Return the result of the work. A cancellation takes effect only after the work has ended.

    A change is therefore never half done, and callers that wait for a thread wait for the work.
    """
    running = asyncio.ensure_future(work)
    try:
        # `shield` lets the work continue after the request was cancelled.
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # Wait for the work, so that its effects are complete.
        await asyncio.gather(running, return_exceptions=True)
        raise
