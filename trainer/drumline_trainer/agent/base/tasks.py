"""Racing coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first_completed(*racers: Coroutine[Any, Any, T]) -> T:
    """Result of the coroutine that completes first; the others are cancelled.

    Of several that complete in the same step of the event loop the leftmost counts.
    """
    tasks = [asyncio.create_task(racer) for racer in racers]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
