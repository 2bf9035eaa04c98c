"""The leader's eyes: who is silent, and who keeps the others waiting.

A silent member is shown to the operator, which decides whether it is lost. A rank that hangs is
killed, which ends the attempt as any other death of a rank does; nobody is killed on the first
look, only when new reports of all members still say the same a moment later.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.base.outcome import pod_exit_code
from drumline_trainer.agent.leader.hang_detection import Hung, Stalled, detect_hang
from drumline_trainer.agent.protocol.leader_orders import Kill
from drumline_trainer.agent.protocol.member_reports import Fault
from drumline_trainer.contract import ExitCode, FaultClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drumline_trainer.agent.leader.member_heartbeats import MemberHeartbeats
    from drumline_trainer.agent.leader.rounds import OrderSender
    from drumline_trainer.agent.processes.local_ranks import LocalRanks
    from drumline_trainer.agent.protocol.leader_orders import Membership
    from drumline_trainer.agent.protocol.member_reports import RankView
    from drumline_trainer.agent.state.rank_status import RankStatusStore
    from drumline_trainer.contract import GenerationRecord, Member

LOOK_SECONDS = 0.5
VERIFY_SECONDS = 1.0


class HangMonitor:
    """Looks at the gang at intervals."""

    def __init__(
        self,
        *,
        record: GenerationRecord,
        roster: MemberHeartbeats,
        board: RankStatusStore,
        gang: LocalRanks,
        orders: OrderSender,
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

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._note_silences()
            if self.membership is None:
                self._suspected = ()
            else:
                await self._look(self.membership)

    def _note_silences(self) -> None:
        before = {one.index for one in self._board.silent_members}
        self._board.silent_members = self._roster.silent_members()
        for one in self._board.silent_members:
            if one.index not in before:
                log(AgentEvent.MEMBER_SILENT, index=one.index, seconds=one.seconds)
        self._board.publish()

    async def _look(self, membership: Membership) -> None:
        others = self._roster.rank_views(membership)
        if others is None:
            return
        views = [*self._gang.views(), *others]
        match detect_hang(views):
            case Hung(ranks=ranks, silent_seconds=seconds):
                suspects = [view for view in views if view.rank in ranks]
                await self._suspect(membership, suspects, silent_seconds=seconds)
            case Stalled(silent_seconds=seconds):
                self._suspected = ()
                self._restart_all_after(membership, silent_seconds=seconds)
            case _:
                self._suspected = ()

    async def _suspect(
        self, membership: Membership, suspects: Sequence[RankView], *, silent_seconds: float
    ) -> None:
        now, ranks = time.monotonic(), tuple(sorted(view.rank for view in suspects))
        if ranks != self._suspected:
            self._suspected, self._since = ranks, now
            return
        heard_since = self._roster.rank_views(membership, since=self._since) is not None
        if now - self._since < VERIFY_SECONDS or not heard_since:
            return
        self._suspected = ()
        reason = f"silent for {silent_seconds:.1f} s while all others waited for it"
        told = await asyncio.gather(
            *(
                self._kill(membership, member, suspects, reason=reason)
                for member in self._record.members
            )
        )
        if any(told) and self.membership == membership:
            self.membership = None
        for fault in itertools.chain(*told):
            self._report(replace(fault, at=fault.detected_at - silent_seconds))

    async def _kill(
        self, membership: Membership, member: Member, suspects: Sequence[RankView], *, reason: str
    ) -> list[Fault]:
        """End those that are of this member. Their faults, as not even a kill ends every process.

        One that waits in the kernel (for a file server, for a driver) stays; the next attempt has
        another in its place.
        """
        generation, attempt = membership
        first = self._record.first_rank(member.index)
        here = [view for view in suspects if first <= view.rank < first + member.ranks]
        numbers = [view.rank for view in here]
        order = Kill(generation=generation, attempt=attempt, ranks=numbers, reason=reason)
        if not here or not await self._orders.kill(order, member):
            return []
        now = time.time()
        return [
            Fault(
                generation=generation,
                attempt=attempt,
                index=member.index,
                rank=view.rank,
                fault_class=FaultClass.HANG,
                cause=f"rank {view.rank}: {reason}",
                at=now,
                detected_at=now,
                step=max(view.position[0], 0),
                exit_code=pod_exit_code(-signal.SIGKILL),
            )
            for view in here
        ]

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
