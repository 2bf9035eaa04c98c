"""Racing coroutines, and waiting for several ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def first_completed(*racers: Coroutine[Any, Any, T]) -> T:
    """Return the result of the coroutine that completes first, and cancel the others.

    If several complete in the same step of the event loop, the leftmost one is used.
    """
    tasks = [asyncio.create_task(racer) for racer in racers]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def wait_for_all(futures: Sequence[asyncio.Future[Any]], *, seconds: float) -> None:
    """Wait until all are done, at most `seconds`."""
    pending = [future for future in futures if not future.done()]
    if pending:
        await asyncio.wait(pending, timeout=seconds)
