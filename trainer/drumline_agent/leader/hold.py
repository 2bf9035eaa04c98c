"""A hold of the pods of a gang that gives up, so that its user can examine them.

The leader delays its last order, so every agent and its pod stays. The failed process has ended.
Processes of other ranks are left as they are, perhaps waiting in a collective. A lost pod, node
or link causes no hold, because it leaves no program state to examine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.protocol.leader_orders import Abandon
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import FaultClass, RemarkKind

HELD_CLASSES: Final = (FaultClass.APPLICATION, FaultClass.OUT_OF_MEMORY, FaultClass.HANG)


class Hold:
    """The wait of the leader before it ends the pods.

    Args:
        status: status of the agent; shows the end of the hold.
        job: its name.
        seconds: length of the hold from the record; None: no hold.
        sleep: waits for a number of seconds.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        status: RankStatusStore,
        *,
        job: str,
        seconds: float | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._status = status
        self._job = job
        self._seconds = seconds
        self._sleep = sleep
        self._clock = clock

    async def keep(self, order: Abandon) -> Abandon:
        """Hold the gang if it is to be held. Returns the order, which says how long it was.

        The sentence stays: what follows is the end of the pods. A newer generation takes it back.
        """
        if not self._seconds or order.fault_class not in HELD_CLASSES:
            return order
        log(AgentEvent.GANG_HELD, seconds=self._seconds, error=order.reason)
        self._status.set_remark(RemarkKind.HELD, self._sentence(order, seconds=self._seconds))
        try:
            await self._sleep(self._seconds)
        # The operator has ended the hold early: remove the remark about its end.
        except asyncio.CancelledError:
            self._status.set_remark(RemarkKind.HELD, "")
            raise
        return replace(order, held_seconds=self._seconds)

    def _sentence(self, order: Abandon, *, seconds: float) -> str:
        until = datetime.fromtimestamp(self._clock() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        rank = "" if order.rank is None else f" --rank {order.rank}"
        return (
            f"held until {until}: `drumline shell {self._job}{rank}` looks into the pod, `drumline"
            f" stop {self._job}` ends it at once; member {order.index}: {order.reason}"
        )
