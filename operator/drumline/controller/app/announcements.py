"""A look at the announced ends of nodes: one that has a stated time comes near by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drumline.controller.cache.cluster import ClusterCache

ANNOUNCEMENT_SECONDS = 5.0
"""At least this often announced disruptions are judged again."""


async def check_announcements(
    state: ClusterCache, *, enqueue: Callable[[str], None], wake: asyncio.Event
) -> None:
    """A disruption that is announced for a stated time comes near without an event of its node."""
    while True:
        await asyncio.sleep(ANNOUNCEMENT_SECONDS)
        for change in state.nodes.check_announcements():
            if change.schedulable:
                wake.set()
            for key in change.jobs:
                enqueue(key)
