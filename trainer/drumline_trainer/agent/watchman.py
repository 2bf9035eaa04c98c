"""The leader's eyes: who is silent, and who keeps the others waiting.

A silent member is shown to the operator, which decides whether it is lost. A rank that hangs is
killed, which ends the attempt as any other death of a rank does; nobody is killed on the first
look, only when new reports of all members still say the same a moment later.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from drumline_trainer.agent.events import Event, log
from drumline_trainer.agent.gang_words import Kill
from drumline_trainer.agent.hangs import Hung, Stalled, judge
from drumline_trainer.agent.reports import Fault
from drumline_trainer.contract import ExitCode, FaultClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumline_trainer.agent.board import Board
    from drumline_trainer.agent.gang import LocalGang
    from drumline_trainer.agent.gang_words import Membership
    from drumline_trainer.agent.roster import Roster
    from drumline_trainer.agent.rounds import Orders
    from drumline_trainer.contract import GenerationRecord, Member

LOOK_SECONDS = 0.5
VERIFY_SECONDS = 1.0


class Watchman:
    """Looks at the gang at intervals."""

    def __init__(
        self,
        *,
        record: GenerationRecord,
        roster: Roster,
        board: Board,
        gang: LocalGang,
        orders: Orders,
        own_index: int,
        report: Callable[[Fault], None],
    ) -> None:
        self._record = record
        self._roster = roster
        self._board = board
        self._gang = gang
        self._orders = orders
        self._own_index = own_index
        self._report = report
        self._suspected: tuple[int, ...] = ()
        self._since = 0.0
        self.membership: Membership | None = None
        """The one that trains; None while nobody is expected to move."""

    async def keep_watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._note_silences()
            if self.membership is None:
                self._suspected = ()
            else:
                await self._look(self.membership)

    def _note_silences(self) -> None:
        before = {one.index for one in self._board.silent}
        self._board.silent = self._roster.silences()
        for one in self._board.silent:
            if one.index not in before:
                log(Event.MEMBER_SILENT, index=one.index, seconds=one.seconds)
        self._board.changed()

    async def _look(self, membership: Membership) -> None:
        others = self._roster.views(membership)
        if others is None:
            return
        match judge([*self._gang.views(), *others]):
            case Hung(ranks=ranks, silent_seconds=seconds):
                await self._suspect(membership, ranks, silent_seconds=seconds)
            case Stalled(silent_seconds=seconds):
                self._suspected = ()
                self._restart_all_after(membership, silent_seconds=seconds)
            case _:
                self._suspected = ()

    async def _suspect(
        self, membership: Membership, ranks: tuple[int, ...], *, silent_seconds: float
    ) -> None:
        now = time.monotonic()
        if ranks != self._suspected:
            self._suspected, self._since = ranks, now
            return
        heard_since = self._roster.views(membership, since=self._since) is not None
        if now - self._since < VERIFY_SECONDS or not heard_since:
            return
        self._suspected = ()
        reason = f"silent for {silent_seconds:.1f} s while all others waited for it"
        told = await asyncio.gather(
            *(
                self._kill(membership, member, ranks, reason=reason)
                for member in self._record.members
            )
        )
        if any(told) and self.membership == membership:
            self.membership = None

    async def _kill(
        self, membership: Membership, member: Member, ranks: tuple[int, ...], *, reason: str
    ) -> bool:
        """End those ranks that are of this member; whether it heard of it."""
        first = self._record.first_rank(member.index)
        here = [rank for rank in ranks if first <= rank < first + member.ranks]
        order = Kill(generation=membership[0], attempt=membership[1], ranks=here, reason=reason)
        return bool(here) and await self._orders.kill(order, member)

    def _restart_all_after(self, membership: Membership, *, silent_seconds: float) -> None:
        limit = self._record.hang_timeout_seconds
        if limit is None or silent_seconds < limit:
            return
        self.membership = None
        now = time.time()
        self._report(
            Fault(
                generation=membership[0],
                attempt=membership[1],
                index=self._own_index,
                fault_class=FaultClass.HANG,
                cause=f"no rank moved for {silent_seconds:.1f} s and none was behind the others",
                at=now - silent_seconds,
                detected_at=now,
                step=self._board.progress.step,
                exit_code=ExitCode.APPLICATION,
            )
        )
