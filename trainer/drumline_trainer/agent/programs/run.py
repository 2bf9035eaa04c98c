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

from drumline_trainer.agent.api.service import Service, first_completed, serving
from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.base.outcome import (
    Failed,
    Preempted,
    StopRequested,
    Succeeded,
    Superseded,
)
from drumline_trainer.agent.leader.leader import Leader
from drumline_trainer.agent.member.leader_reporter import LeaderReporter
from drumline_trainer.agent.member.member import MemberAgent
from drumline_trainer.agent.member.save_on_termination import save_before_termination
from drumline_trainer.agent.processes.reaper import Reaper
from drumline_trainer.agent.processes.rendezvous_store import RendezvousStore
from drumline_trainer.agent.processes.zygote_client import ZygoteClient
from drumline_trainer.agent.programs.gang_routes import GangRoutes
from drumline_trainer.agent.programs.pod_exit import PodExit, report_exit
from drumline_trainer.agent.protocol.leader_orders import Abandon, Finish
from drumline_trainer.agent.snapshots.catalog import SnapshotCatalog
from drumline_trainer.agent.snapshots.transfer import SnapshotServer
from drumline_trainer.agent.state.incident_log import IncidentLog
from drumline_trainer.contract import ExitCode
from drumline_trainer.host import prctl

if TYPE_CHECKING:
    from drumline_trainer.agent.base.outcome import Outcome
    from drumline_trainer.agent.base.settings import AgentSettings
    from drumline_trainer.agent.state.record_store import SignedRecord

GRACE_MARGIN_SECONDS = 5.0
"""Kept of the pod's grace period for killing, reporting and exiting."""


async def run(settings: AgentSettings) -> int:
    """Run one pod to its end. Returns the pod's exit code."""
    prctl.adopt_orphans()
    reaper = Reaper()
    snapshots = SnapshotCatalog(settings.snapshot_folder)
    server = SnapshotServer(token=settings.token, snapshots=snapshots)
    async with serving(settings, uploads=server) as service:
        zygote = ZygoteClient(module=settings.rank_module, reaper=reaper)
        try:
            pod = TrainerPod(service=service, zygote=zygote, snapshots=snapshots, server=server)
            ending = await pod.live()
        finally:
            await zygote.close()
            snapshots.remove_all()
        return report_exit(service, ending)


class TrainerPod:
    """The agent from its first record to its last."""

    def __init__(
        self,
        *,
        service: Service,
        zygote: ZygoteClient,
        snapshots: SnapshotCatalog,
        server: SnapshotServer,
    ) -> None:
        self._service = service
        self._zygote = zygote
        self._incidents = IncidentLog(service.status)
        self._stopping_until = 0.0
        """When the ranks of a pod that was told to stop are killed; 0: it was not told."""
        self._store = RendezvousStore(zygote=zygote, first_port=service.settings.store_port)
        self._member = MemberAgent(
            service=service, zygote=zygote, snapshots=snapshots, incidents=self._incidents
        )
        server.membership = lambda: self._member.membership
        self._routes = GangRoutes(service=service, member=self._member, snapshot_server=server)

    async def live(self) -> PodExit:
        """Until the pod's part is over."""
        service = self._service
        facts = await first_completed(
            self._zygote.wait_until_ready(), service.wait_for_stop(), self._zygote.wait_until_gone()
        )
        if isinstance(facts, Failed | StopRequested):
            return _before_ranks(facts)
        service.status.ready = True
        log(AgentEvent.AGENT_READY, import_seconds=facts.seconds, zygote_threads=facts.threads)
        generation = service.records.generation
        signed = await first_completed(
            service.records.wait_for_newer(generation),
            service.wait_for_stop(),
            self._zygote.wait_until_gone(),
        )
        while not isinstance(signed, Failed | StopRequested):
            verdict = await self._serve(signed)
            if not isinstance(verdict, Superseded):
                return await self._end(signed, verdict)
            log(AgentEvent.GENERATION_SUPERSEDED, generation=signed.generation)
            signed = await service.records.wait_for_newer(signed.generation)
        return _before_ranks(signed)

    async def _serve(self, signed: SignedRecord) -> Outcome:
        """Play this pod's part in one generation."""
        self._service.status.silent_members = ()
        verdict = await first_completed(
            self._last_word(),
            self._left(),
            self._superseded(signed),
            self._saved_and_stopped(signed),
            self._zygote.wait_until_gone(),
            self._replaced(),
            self._work(signed),
        )
        self._routes.leader = None
        return verdict

    async def _work(self, signed: SignedRecord) -> Outcome:
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
            uplink = LeaderReporter(service=self._service, member=self._member, signed=signed)
            self._member.report = uplink.report
            self._member.last_heard = uplink.last_heard
            self._member.on_rank_heartbeat = lambda _: None
            await uplink.run()
        return await self._last_word()

    async def _last_word(self) -> Outcome:
        match await asyncio.shield(self._member.last_order):
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

    async def _left(self) -> Preempted:
        gang = self._member.ranks
        await gang.changes.wait_for(lambda: gang.all_preempted or None)
        return Preempted()

    async def _superseded(self, signed: SignedRecord) -> Superseded:
        await self._service.records.wait_for_newer(signed.generation)
        return Superseded()

    async def _replaced(self) -> Failed:
        generation = await self._service.records.wait_until_replaced()
        reason = f"another pod is member {self._service.settings.index} of generation {generation}"
        return Failed(exit_code=ExitCode.PEER_LOST, reason=reason)

    async def _end(self, signed: SignedRecord, verdict: Outcome) -> PodExit:
        seconds = 0.0
        match verdict:
            case StopRequested():
                seconds = max(self._stopping_until - time.monotonic(), 1.0)
            case Succeeded():
                await self._member.ranks.wait_for_teardown()
            case Preempted():
                await self._leave(signed)
            case _:
                pass
        if await self._member.end(grace_seconds=seconds) and isinstance(verdict, StopRequested):
            verdict = Succeeded()
        await self._store.close()
        return PodExit(verdict=verdict)

    async def _saved_and_stopped(self, signed: SignedRecord) -> StopRequested:
        """Told to stop: the gang saves first, and whatever ends this pod earlier is not missed."""
        service = self._service
        verdict = await service.wait_for_stop()
        if not self._stopping_until:
            grace = service.settings.grace_seconds
            log(AgentEvent.TERMINATION_REQUESTED, grace_seconds=grace)
            self._stopping_until = time.monotonic() + max(grace - GRACE_MARGIN_SECONDS, grace / 2)
        seconds = self._stopping_until - time.monotonic()
        await save_before_termination(service, signed, seconds=seconds)
        return verdict

    async def _leave(self, signed: SignedRecord) -> None:
        """Everybody leaves on request; the leader, which others may still ask, as the last."""
        service = self._service
        attempt = self._member.membership[1]
        if signed.record.store_member.index == service.settings.index:
            await service.wait_for_departures(signed.record, attempt=attempt)
        else:
            await service.report_departure(
                signed.record,
                attempt=attempt,
                exit_code=ExitCode.PREEMPTED,
                for_seconds=service.settings.peer_lost_seconds,
            )


def _before_ranks(verdict: Failed | StopRequested) -> PodExit:
    match verdict:
        case Failed(reason=reason):
            return PodExit(verdict=verdict, error=reason)
        case StopRequested():
            return PodExit(verdict=verdict, error="terminated before its ranks were started")
