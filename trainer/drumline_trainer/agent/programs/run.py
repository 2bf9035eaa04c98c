"""The agent of a trainer pod: wait for a record, play its part in the gang, say how it ended, exit.

    warm up the zygote -> ready -> a record -> lead or follow -> the gang's end -> exit
                                      ^-------------'  a record of a higher generation

The ranks live on from record to record. The exit code is the gang's: 0 when every rank was done,
PREEMPTED when they left on request, else that of the rank to blame in its pod and PEER_LOST in the
others. The termination message is a `contract.FinalReport`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from drumline_trainer.agent.api.service import Service, first, serving
from drumline_trainer.agent.base.events import Event, log
from drumline_trainer.agent.base.outcome import Failed, Left, Succeeded, Superseded, Terminated
from drumline_trainer.agent.leader.leader import Leader
from drumline_trainer.agent.member.leader_reporter import Uplink
from drumline_trainer.agent.member.member import Member
from drumline_trainer.agent.member.save_on_termination import save_before_the_end
from drumline_trainer.agent.processes.reaper import Reaper
from drumline_trainer.agent.processes.rendezvous_store import Store
from drumline_trainer.agent.processes.zygote_client import ZygoteClient
from drumline_trainer.agent.programs.gang_routes import GangRoutes
from drumline_trainer.agent.programs.pod_exit import Ending, conclude
from drumline_trainer.agent.protocol.leader_orders import Abandon, Finish
from drumline_trainer.agent.snapshots.catalog import Snapshots
from drumline_trainer.agent.snapshots.transfer import SnapshotServer
from drumline_trainer.agent.state.incident_log import IncidentLog
from drumline_trainer.contract import ExitCode
from drumline_trainer.host import prctl

if TYPE_CHECKING:
    from drumline_trainer.agent.base.outcome import Verdict
    from drumline_trainer.agent.base.settings import AgentSettings
    from drumline_trainer.agent.state.record_store import SignedRecord

GRACE_MARGIN_SECONDS = 5.0
"""Kept of the pod's grace period for killing, reporting and exiting."""


async def run(settings: AgentSettings) -> int:
    """Run one pod to its end. Returns the pod's exit code."""
    prctl.adopt_orphans()
    reaper = Reaper()
    snapshots = Snapshots(settings.snapshot_folder)
    server = SnapshotServer(token=settings.token, snapshots=snapshots)
    async with serving(settings, uploads=server) as service:
        zygote = ZygoteClient(module=settings.rank_module, reaper=reaper)
        try:
            pod = Pod(service=service, zygote=zygote, snapshots=snapshots, server=server)
            ending = await pod.live()
        finally:
            await zygote.close()
            snapshots.remove()
        return conclude(service, ending)


class Pod:
    """The agent from its first record to its last."""

    def __init__(
        self,
        *,
        service: Service,
        zygote: ZygoteClient,
        snapshots: Snapshots,
        server: SnapshotServer,
    ) -> None:
        self._service = service
        self._zygote = zygote
        self._incidents = IncidentLog(service.board)
        self._stopping_until = 0.0
        """When the ranks of a pod that was told to stop are killed; 0: it was not told."""
        self._store = Store(zygote=zygote, first_port=service.settings.store_port)
        self._member = Member(
            service=service, zygote=zygote, snapshots=snapshots, incidents=self._incidents
        )
        server.membership = lambda: self._member.membership
        self._routes = GangRoutes(service=service, member=self._member, snapshot_server=server)

    async def live(self) -> Ending:
        """Until the pod's part is over."""
        service = self._service
        facts = await first(self._zygote.warm(), service.stopped(), self._zygote.ended())
        if isinstance(facts, Failed | Terminated):
            return _before_ranks(facts)
        service.board.ready = True
        log(Event.AGENT_READY, import_seconds=facts.seconds, zygote_threads=facts.threads)
        generation = service.book.generation
        signed = await first(
            service.book.after(generation), service.stopped(), self._zygote.ended()
        )
        while not isinstance(signed, Failed | Terminated):
            verdict = await self._serve(signed)
            if not isinstance(verdict, Superseded):
                return await self._end(signed, verdict)
            log(Event.GENERATION_SUPERSEDED, generation=signed.generation)
            signed = await service.book.after(signed.generation)
        return _before_ranks(signed)

    async def _serve(self, signed: SignedRecord) -> Verdict:
        """Play this pod's part in one generation."""
        self._service.board.silent = ()
        verdict = await first(
            self._last_word(),
            self._left(),
            self._superseded(signed),
            self._saved_and_stopped(signed),
            self._zygote.ended(),
            self._replaced(),
            self._work(signed),
        )
        self._routes.leader = None
        return verdict

    async def _work(self, signed: SignedRecord) -> Verdict:
        leads = signed.record.store_member.index == self._service.settings.index
        if leads:
            leader = Leader(
                service=self._service,
                signed=signed,
                member=self._member,
                incidents=self._incidents,
                store=self._store,
            )
            self._routes.leader = leader
            self._member.report = leader.report
            self._member.last_heard = leader.last_heard
            await leader.lead()
        else:
            uplink = Uplink(service=self._service, member=self._member, signed=signed)
            self._member.report = uplink.report
            self._member.last_heard = uplink.last_heard
            self._member.watch = lambda _: None
            await uplink.run()
        return await self._last_word()

    async def _last_word(self) -> Verdict:
        match await asyncio.shield(self._member.ending):
            case Finish():
                return Succeeded()
            case Abandon() as order:
                return self._abandoned(order)

    def _abandoned(self, order: Abandon) -> Failed:
        if order.index == self._service.settings.index:
            return Failed(
                exit_code=order.exit_code,
                reason=order.reason,
                rank=order.rank,
                fault_class=order.fault_class,
            )
        return Failed(
            exit_code=ExitCode.PEER_LOST,
            reason=f"member {order.index} gave up: {order.reason}",
            fault_class=order.fault_class,
        )

    async def _left(self) -> Left:
        gang = self._member.gang
        await gang.news.until(lambda: gang.left or None)
        return Left()

    async def _superseded(self, signed: SignedRecord) -> Superseded:
        await self._service.book.after(signed.generation)
        return Superseded()

    async def _replaced(self) -> Failed:
        generation = await self._service.book.replaced()
        reason = f"another pod is member {self._service.settings.index} of generation {generation}"
        return Failed(exit_code=ExitCode.PEER_LOST, reason=reason)

    async def _end(self, signed: SignedRecord, verdict: Verdict) -> Ending:
        seconds = 0.0
        match verdict:
            case Terminated():
                seconds = max(self._stopping_until - time.monotonic(), 1.0)
            case Succeeded():
                await self._member.gang.ended_by_themselves()
            case Left():
                await self._leave(signed)
            case _:
                pass
        if await self._member.end(grace_seconds=seconds) and isinstance(verdict, Terminated):
            verdict = Succeeded()
        await self._store.close()
        return Ending(verdict=verdict)

    async def _saved_and_stopped(self, signed: SignedRecord) -> Terminated:
        """Told to stop: the gang saves first, and whatever ends this pod earlier is not missed."""
        service = self._service
        verdict = await service.stopped()
        if not self._stopping_until:
            grace = service.settings.grace_seconds
            log(Event.TERMINATION_REQUESTED, grace_seconds=grace)
            self._stopping_until = time.monotonic() + max(grace - GRACE_MARGIN_SECONDS, grace / 2)
        seconds = self._stopping_until - time.monotonic()
        await save_before_the_end(service, signed, seconds=seconds)
        return verdict

    async def _leave(self, signed: SignedRecord) -> None:
        """Everybody leaves on request; the leader, which others may still ask, as the last."""
        service = self._service
        attempt = self._member.membership[1]
        if signed.record.store_member.index == service.settings.index:
            await service.others_departed(signed.record, attempt=attempt)
        else:
            await service.depart(
                signed.record,
                attempt=attempt,
                exit_code=ExitCode.PREEMPTED,
                for_seconds=service.settings.peer_lost_seconds,
            )


def _before_ranks(verdict: Failed | Terminated) -> Ending:
    match verdict:
        case Failed(reason=reason):
            return Ending(verdict=verdict, error=reason)
        case Terminated():
            return Ending(verdict=verdict, error="terminated before its ranks were started")
