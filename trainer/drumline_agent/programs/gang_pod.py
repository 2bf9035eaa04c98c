"""A pod of a gang, whatever its ranks run: wait for a record, lead or follow, report, exit.

    ranks can be started -> ready -> a record -> lead or follow -> the gang's end -> exit
                                         ^-------------'  a record of a higher generation

The ranks outlive records. The exit code is the gang's: 0 when every rank is done, PREEMPTED when
they have left after a notice; otherwise that of the rank with the root cause in its pod, and
PEER_LOST in the other pods. The termination message is a `contract.FinalReport`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from drumline_agent.api.service import Service
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.outcome import (
    Failed,
    Outcome,
    Preempted,
    StopRequested,
    Succeeded,
    Superseded,
)
from drumline_agent.base.tasks import first_completed
from drumline_agent.commands.client_link import ClientLink
from drumline_agent.leader.leader import Leader
from drumline_agent.member.leader_reporter import LeaderReporter
from drumline_agent.member.member import MemberAgent, nothing_to_send
from drumline_agent.processes.ranks import RankListener, Ranks
from drumline_agent.processes.store_process import AttemptStore
from drumline_agent.processes.zygote_client import ZygoteReady
from drumline_agent.programs.gang_routes import GangRoutes
from drumline_agent.programs.pod_exit import PodExit
from drumline_agent.protocol.leader_orders import Abandon, CheckpointSaved, ClientOrder, Finish
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.snapshots.transfer import SnapshotServer
from drumline_agent.state.incident_log import IncidentLog
from drumline_agent.state.record_store import SignedRecord
from drumline_contract import ExitCode, GenerationRecord

REPORT_SECONDS = 2.0
"""Time for which a pod whose GPU has failed stays to report to the leader."""
GRACE_MARGIN_SECONDS = 5.0
"""Part of the pod's grace period that is kept for killing, reporting and exiting."""


class StopPreparation(Protocol):
    """Action of a pod on SIGTERM before it ends its ranks."""

    async def __call__(self, service: Service, signed: SignedRecord, *, seconds: float) -> None:
        """Make the gang save within these seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodParts:
    """The parts in which the bundled trainer and a user's command differ."""

    make_ranks: Callable[[RankListener], Ranks]
    store: AttemptStore
    wait_until_ready: Callable[[], Coroutine[Any, Any, ZygoteReady]]
    wait_until_gone: Callable[[], Coroutine[Any, Any, Failed]]
    prepare_for_stop: StopPreparation
    stopped: Callable[[bool], Outcome]
    """Return the outcome after SIGTERM. The argument is True if every rank of the pod was done."""
    on_record: Callable[[GenerationRecord], None] = lambda _: None
    """Called with the record of every new generation, before any order of that generation."""
    on_client_order: Callable[[ClientOrder | CheckpointSaved], None] = lambda _: None
    """Called with each message of the leader to the clients of the ranks."""
    link: ClientLink = field(default_factory=ClientLink)
    """Connection of the ranks' clients to the leader."""


class GangPod:
    """The agent from its first record to its last.

    Args:
        service: settings, records and status of this agent.
        parts: ranks and their settings.
        snapshots: snapshots that this pod holds.
        server: serves snapshots to other pods.
    """

    def __init__(
        self,
        *,
        service: Service,
        parts: PodParts,
        snapshots: SnapshotCatalog,
        server: SnapshotServer,
    ) -> None:
        self._service = service
        self._parts = parts
        self._incidents = IncidentLog(service.status)
        self._stop_deadline: float | None = None
        """Time at which the ranks are killed, on the monotonic clock. None before SIGTERM."""
        self._store = parts.store
        self._member = MemberAgent(
            service=service,
            make_ranks=parts.make_ranks,
            snapshots=snapshots,
            incidents=self._incidents,
        )
        self._member.on_record = parts.on_record
        self._member.on_client_order = parts.on_client_order
        server.membership = lambda: self._member.membership
        self._routes = GangRoutes(service=service, member=self._member, snapshot_server=server)

    async def live(self) -> PodExit:
        """Run until the pod has to exit."""
        service = self._service
        ready = await first_completed(
            self._parts.wait_until_ready(), service.wait_for_stop(), self._parts.wait_until_gone()
        )
        if isinstance(ready, Failed | StopRequested):
            return _before_ranks(ready)
        service.status.ready = True
        log(AgentEvent.AGENT_READY, import_seconds=ready.seconds, zygote_threads=ready.threads)
        signed = await first_completed(
            service.records.wait_for_newer(0),  # or one that came while nothing could start
            service.wait_for_stop(),
            self._parts.wait_until_gone(),
        )
        while not isinstance(signed, Failed | StopRequested):
            outcome = await self._serve(signed)
            if not isinstance(outcome, Superseded):
                return await self._end(signed, outcome)
            log(AgentEvent.GENERATION_SUPERSEDED, generation=signed.generation)
            signed = await service.records.wait_for_newer(signed.generation)
        return _before_ranks(signed)

    async def _serve(self, signed: SignedRecord) -> Outcome:
        """Lead or follow in one generation, until it ends for this pod."""
        self._service.status.silent_members = ()
        outcome = await first_completed(
            self._ended_by_leader(),
            self._preempted(),
            self._superseded(signed),
            self._saved_and_stopped(signed),
            self._parts.wait_until_gone(),
            self._replaced(),
            self._device_failed(),
            self._lead_or_follow(signed),
        )
        self._routes.leader = None
        self._parts.link.cut()
        return outcome

    async def _lead_or_follow(self, signed: SignedRecord) -> Outcome:
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
            self._member.report, self._member.all_reported = leader.report, nothing_to_send
            self._member.last_heard = leader.last_heard
            link = self._parts.link
            link.to_leader = leader.clients.handle
            link.request_save, link.withdraw_save = leader.clients.request, leader.clients.withdraw
            await leader.lead()
        else:
            reporter = LeaderReporter(service=self._service, member=self._member, signed=signed)
            self._member.report = reporter.report
            self._member.all_reported = reporter.all_reported
            self._member.last_heard = reporter.last_heard
            self._parts.link.to_leader = reporter.pass_on
            self._member.on_rank_heartbeat = lambda _: None
            await reporter.run()
        return await self._ended_by_leader()

    async def _ended_by_leader(self) -> Outcome:
        match await asyncio.shield(self._member.last_order):
            case Finish():
                return Succeeded()
            case Abandon() as order:
                return self._abandoned(order)

    def _abandoned(self, order: Abandon) -> Failed:
        self._service.status.held_seconds = order.held_seconds
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

    async def _preempted(self) -> Preempted:
        ranks = self._member.ranks
        await ranks.changes.wait_for(lambda: ranks.all_preempted or None)
        return Preempted()

    async def _superseded(self, signed: SignedRecord) -> Superseded:
        await self._service.records.wait_for_newer(signed.generation)
        return Superseded()

    async def _replaced(self) -> Failed:
        generation = await self._service.records.wait_until_replaced()
        reason = f"another pod is member {self._service.settings.index} of generation {generation}"
        return Failed(exit_code=ExitCode.PEER_LOST, reason=reason)

    async def _device_failed(self) -> Failed:
        """End this pod alone, as if its node was lost, and say why: only another node helps."""
        fault = await asyncio.shield(self._member.device_fault)
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await self._member.all_reported()
        return Failed(
            exit_code=fault.exit_code,
            reason=fault.cause,
            rank=fault.rank,
            fault_class=fault.fault_class,
        )

    async def _end(self, signed: SignedRecord, outcome: Outcome) -> PodExit:
        seconds = 0.0
        match outcome:
            case StopRequested():
                seconds = max(self._seconds_to_stop(), 1.0)
            case Succeeded():
                await self._member.ranks.wait_for_teardown()
            case Preempted():
                await self._depart(signed)
            case Failed() | Superseded():
                pass
        done = await self._member.end(grace_seconds=seconds)
        if isinstance(outcome, StopRequested):
            outcome = self._parts.stopped(done)
        await self._store.close()
        return PodExit(outcome=outcome)

    async def _saved_and_stopped(self, signed: SignedRecord) -> StopRequested:
        """Make the gang save after SIGTERM. Any other end of this pod cancels the wait."""
        service = self._service
        outcome = await service.wait_for_stop()
        if self._stop_deadline is None:
            grace = service.settings.grace_seconds
            log(AgentEvent.TERMINATION_REQUESTED, grace_seconds=grace)
            self._stop_deadline = time.monotonic() + max(grace - GRACE_MARGIN_SECONDS, grace / 2)
        await self._parts.prepare_for_stop(service, signed, seconds=self._seconds_to_stop())
        return outcome

    def _seconds_to_stop(self) -> float:
        return 0.0 if self._stop_deadline is None else self._stop_deadline - time.monotonic()

    async def _depart(self, signed: SignedRecord) -> None:
        """Exit after a notice, the leader last, as the others may still need it."""
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


def _before_ranks(outcome: Failed | StopRequested) -> PodExit:
    """Return the exit of a pod whose ranks were never started."""
    match outcome:
        case Failed(reason=reason):
            return PodExit(outcome=outcome, error=reason)
        case StopRequested():
            return PodExit(outcome=outcome, error="terminated before its ranks were started")
