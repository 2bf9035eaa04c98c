"""When waiting jobs will probably start: worked out beside the scheduler, at a pace of its own.

A forecast is many cycles long, so it runs in a thread, from a snapshot as frozen as any, and rests
`REST` times as long as it took: it takes a twentieth of one core at most, whatever the cluster's
size, and in a large one is as old as that makes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from drumline.controller.clusterstate import ClusterState
from drumline.controller.pastuse import PastUse
from drumline.scheduling.waiting.forecast import ExpectedStart, expected_starts
from drumline.telemetry import logs

if TYPE_CHECKING:
    from drumline.scheduling.model import Policy

log = logs.get("drumline.controller.forecasts")

INTERVAL_SECONDS = 60.0
REST = 20
SAMPLES = 5


class Forecasts:
    """The newest forecast of every job that waits near the head of the line.

    Args:
        state: the caches.
        past: what queues have had.
        policy: the choices of the cluster's owner.
        clock: seconds since the epoch.
        wake: has the scheduler look, and tell what is new.
    """

    def __init__(
        self,
        *,
        state: ClusterState,
        past: PastUse,
        policy: Policy,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._state = state
        self._past = past
        self._policy = policy
        self._clock = clock
        self._wake = wake
        self._starts: Mapping[str, ExpectedStart] = {}

    def of(self, uid: str) -> ExpectedStart | None:
        """When this job will probably start, if that was worked out."""
        return self._starts.get(uid)

    async def run(self) -> None:
        """Look ahead every minute, or as often as the rest allows; never returns."""
        while True:
            began = time.perf_counter()
            try:
                await self.look_ahead()
            except Exception:  # words for people: the next look tries again
                log.exception("forecast_failed")
            took = time.perf_counter() - began
            await asyncio.sleep(max(INTERVAL_SECONDS, REST * took))

    async def look_ahead(self) -> None:
        """Work out when those who wait now will start."""
        now = self._clock()
        pending = self._state.pending()
        if not pending:
            self._starts = {}
            return
        snapshot = replace(self._state.snapshot(now=now), history=self._past.at(now))
        found = await asyncio.to_thread(
            expected_starts,
            snapshot=snapshot,
            pending=pending,
            policy=self._policy,
            now=now,
            samples=SAMPLES,
        )
        self._starts = {one.uid: one for one in found}
        self._wake()
