"""Watches the gang for silent members, for ranks that hang or are slow, and for idle GPUs.

A silent member is only shown to the operator, which decides whether it is lost. A rank that hangs
is killed, which ends the attempt as any other death of a rank does. Nothing is killed on the first
detection: it has to be confirmed by newer heartbeats of all members a moment later. Ranks of a
user's command then show the collective in which they wait.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.exit_codes import pod_exit_code
from drumline_agent.leader.compute_history import ComputeHistory
from drumline_agent.leader.hang_detection import Hung, Moving, Stalled, detect_hang
from drumline_agent.leader.idle_watch import IdleWatch
from drumline_agent.leader.member_heartbeats import MemberHeartbeats
from drumline_agent.leader.order_sender import OrderSender
from drumline_agent.leader.rank_whereabouts import whereabouts
from drumline_agent.leader.stragglers import Stragglers
from drumline_agent.processes.ranks import Ranks
from drumline_agent.protocol.leader_orders import Kill
from drumline_agent.protocol.member_reports import Fault, RankView
from drumline_agent.protocol.membership import Membership
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import MAX_CAUSE_CHARS, ExitCode, FaultClass, GenerationRecord, Member

LOOK_SECONDS = 0.5
VERIFY_SECONDS = 1.0


class HangMonitor:
    """Checks the gang at intervals.

    Args:
        record: the generation record.
        heartbeats: newest heartbeats of all members.
        status: status of this pod's ranks.
        ranks: ranks of this pod.
        orders: sends orders to the members.
        own_index: index of this pod's member.
        report: called with a detected hang.
    """

    def __init__(
        self,
        *,
        record: GenerationRecord,
        heartbeats: MemberHeartbeats,
        status: RankStatusStore,
        ranks: Ranks,
        orders: OrderSender,
        own_index: int,
        report: Callable[[Fault], None],
    ) -> None:
        self._record = record
        self._heartbeats = heartbeats
        self._status = status
        self._ranks = ranks
        self._orders = orders
        self._own_index = own_index
        self._report = report
        self._suspected: tuple[int, ...] = ()
        self._since = 0.0
        self._idle = IdleWatch()
        self._stragglers = Stragglers(record)
        self._computed = ComputeHistory(record)
        self.membership: Membership | None = None
        """The membership that trains; None while ranks are not expected to move."""

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            # Also between attempts: the operator shows silent members at any time.
            self._publish_silent_members()
            if self.membership is None:
                self._suspected = ()
                self._publish_pause(())
                self._status.slow_members = ()
            else:
                await self._check(self.membership)

    def _publish_silent_members(self) -> None:
        before = {member.index for member in self._status.silent_members}
        self._status.silent_members = self._heartbeats.silent_members()
        for member in self._status.silent_members:
            # Logged once per silence, not at every look.
            if member.index not in before:
                log(AgentEvent.MEMBER_SILENT, index=member.index, seconds=member.seconds)
        self._status.publish()

    def _publish_pause(self, views: Sequence[RankView]) -> None:
        """Publish the gang's pause. With a silent member it is unknown, because its ranks are."""
        judged = () if self._status.silent_members else views
        self._status.pause = self._idle.look(judged, now=time.monotonic())
        self._status.publish()

    async def _check(self, membership: Membership) -> None:
        remote = self._heartbeats.rank_views(membership)
        # Not all members have reported since this membership began: nothing can be compared.
        if remote is None:
            self._publish_pause(())
            return
        views = [*self._ranks.views(), *remote]
        self._publish_pause(views)
        self._status.slow_members = self._stragglers.after(views, membership=membership)
        self._status.compute_points = self._computed.after(views, membership=membership)
        match detect_hang(views):
            case Hung() as hung:
                suspects = [view for view in views if view.rank in hung.ranks]
                await self._suspect(membership, views, suspects, hung=hung)
            # No rank stands out, so no suspicion survives.
            case Stalled() as stalled:
                self._suspected = ()
                await self._restart_all_after(membership, views, stalled=stalled)
            case Moving():
                self._suspected = ()

    async def _suspect(
        self,
        membership: Membership,
        views: Sequence[RankView],
        suspects: Sequence[RankView],
        *,
        hung: Hung,
    ) -> None:
        """Kill the suspects once newer heartbeats confirm them."""
        now, ranks = time.monotonic(), tuple(sorted(view.rank for view in suspects))
        # 1. First sighting: the views of different pods are not of one moment, so check again.
        if ranks != self._suspected:
            self._suspected, self._since = ranks, now
            return
        # 2. Second look: every member must have reported since, or a delayed heartbeat is blamed.
        confirmed = self._heartbeats.rank_views(membership, since=self._since) is not None
        if now - self._since < VERIFY_SECONDS or not confirmed:
            return
        # 3. Kill in all pods at once. The faults name the whole silence as the hang's duration.
        self._suspected = ()
        reason = f"silent for {hung.silent_seconds:.1f} s while all others waited for it"
        why = hung.reason or await self._whereabouts(membership, views)
        reason += f": {why}" if why else ""
        faults_by_member = await asyncio.gather(
            *(
                self._kill(membership, member, suspects, reason=reason)
                for member in self._record.members
            )
        )
        # Stop watching: the other ranks now fail or fall silent as a consequence.
        if any(faults_by_member) and self.membership == membership:
            self.membership = None
        for fault in itertools.chain(*faults_by_member):
            self._report(replace(fault, at=fault.detected_at - hung.silent_seconds))

    async def _kill(
        self, membership: Membership, member: Member, suspects: Sequence[RankView], *, reason: str
    ) -> list[Fault]:
        """Kill the suspects of this member. Returns their faults.

        The faults are reported whether or not the processes end: a process that waits in the kernel
        (for a file server, for a driver) survives a kill, and the next attempt replaces it.
        """
        generation, attempt = membership
        first = self._record.first_rank(member.index)
        here = [view for view in suspects if first <= view.rank < first + member.ranks]
        numbers = [view.rank for view in here]
        order = Kill(generation=generation, attempt=attempt, ranks=numbers, reason=reason)
        # An unreachable member may be lost. Then its pod is the fault, not its ranks.
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
                cause=f"rank {view.rank}: {reason}"[:MAX_CAUSE_CHARS],
                at=now,
                detected_at=now,
                step=max(view.position[0], 0),
                exit_code=pod_exit_code(-signal.SIGKILL),
            )
            for view in here
        ]

    async def _whereabouts(self, membership: Membership, views: Sequence[RankView]) -> str:
        """Return a sentence on where the ranks are; empty if they do not show it. It ends them."""
        if not self._ranks.shows_places:
            return ""
        return whereabouts(await self._orders.places(membership), ranks=len(views))

    async def _restart_all_after(
        self, membership: Membership, views: Sequence[RankView], *, stalled: Stalled
    ) -> None:
        limit = self._record.hang_timeout_seconds
        if limit is None or stalled.silent_seconds < limit:
            return
        self.membership = None
        now = time.time()
        why = stalled.reason or await self._whereabouts(membership, views)
        self._report(
            Fault(
                generation=membership[0],
                attempt=membership[1],
                index=self._own_index,
                fault_class=FaultClass.HANG,
                cause=f"no rank moved for {stalled.silent_seconds:.1f} s and"
                f" {why or 'none was behind the others'}"[:MAX_CAUSE_CHARS],
                at=now - stalled.silent_seconds,
                detected_at=now,
                step=self._status.progress.step,
                exit_code=ExitCode.APPLICATION,
            )
        )
