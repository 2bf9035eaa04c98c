"""Ranks of a command that end with exit code 0 while others continue.

This is normal for a moment: the first rank may write a last file, for example. Later, the others
most likely wait for a rank that is gone, and their collectives may never report it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from drumline_agent.protocol.member_reports import Fault, RankView
from drumline_agent.protocol.membership import Membership
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import ExitCode, FaultClass, RemarkKind

SHOWN_RANKS = 8
QUIET_SECONDS = 5.0
"""A difference up to this many seconds is not reported. Ranks never end in the same instant."""


class EarlyExits:
    """Reports early exits in the status, and bounds the time of the remaining ranks.

    Args:
        status: status of this pod's ranks.
        own_index: index of this pod's member.
        seconds: time in which the remaining ranks must end.
    """

    def __init__(self, status: RankStatusStore, *, own_index: int, seconds: float) -> None:
        self._status = status
        self._own_index = own_index
        self._seconds = seconds

    def begun(self, views: Sequence[RankView]) -> bool | None:
        """Return True if some ranks are done and others are not, otherwise None."""
        done = sum(view.done for view in views)
        return True if 0 < done < len(views) else None

    async def wait(self) -> None:
        """Wait for the time that the remaining ranks have to end. Show a message in the status."""
        quiet = min(QUIET_SECONDS, self._seconds)
        await asyncio.sleep(quiet)
        self._say(
            f"some ranks have ended with exit code 0; the rest has {self._seconds:.0f} s to end"
        )
        try:
            await asyncio.sleep(self._seconds - quiet)
        finally:
            self._say("")

    def fault(self, membership: Membership, views: Sequence[RankView]) -> Fault:
        """Build the fault of ranks that have not ended in time."""
        now = time.time()
        running = [view.rank for view in views if not view.done]
        shown = ", ".join(map(str, running[:SHOWN_RANKS])) + (
            ", ..." if len(running) > SHOWN_RANKS else ""
        )
        return Fault(
            generation=membership[0],
            attempt=membership[1],
            index=self._own_index,
            fault_class=FaultClass.APPLICATION,
            cause=(
                f"rank {shown} still ran {self._seconds:.0f} s after other ranks had ended with "
                "exit code 0: end all ranks together, or let them wait for each other"
            ),
            at=now,
            detected_at=now,
            step=self._status.progress.step,
            exit_code=ExitCode.APPLICATION,
        )

    def _say(self, sentence: str) -> None:
        self._status.set_remark(RemarkKind.RANKS_ENDED, sentence)
