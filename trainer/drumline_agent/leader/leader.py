"""The leader: the agent of the record's store member, which alone decides for the gang.

    round (generation, 0) -> train -> faults -> round (generation, 1) -> train -> ...
                                  |         |
                                  |         +-> no restart can help, or none is left
                                  |                -> held, if the user wants to look -> Abandon
                                  +-> all ranks done -> Finish

It only decides about the newest membership, so nothing is decided twice: a fault of an older one
joins the incident that the recovery is from. A leader is never replaced within a generation: if it
is lost, the next generation has another.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from drumline_agent.api.record_delivery import deliver_to_all, send_until_answered
from drumline_agent.api.service import Service
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.tasks import first_completed
from drumline_agent.http.message import HttpRequest
from drumline_agent.leader.client_coordinator import ClientCoordinator
from drumline_agent.leader.early_exits import EarlyExits
from drumline_agent.leader.fault_collector import FaultCollector
from drumline_agent.leader.hang_monitor import HangMonitor
from drumline_agent.leader.hold import Hold
from drumline_agent.leader.member_heartbeats import MemberHeartbeats
from drumline_agent.leader.order_sender import OrderSender
from drumline_agent.leader.recovery_tracker import RecoveryTracker
from drumline_agent.leader.restart_account import RestartAccount
from drumline_agent.leader.restore_plan import RestorePlan, newest_checkpoint_of, plan_restore
from drumline_agent.leader.root_cause import (
    abandon_order,
    incident_of,
    incident_of_new_generation,
    root_cause_of,
    root_causes_by_class,
    with_finished_steps,
)
from drumline_agent.leader.storage_outage import StorageOutage
from drumline_agent.member.member import MemberAgent
from drumline_agent.processes.store_process import AttemptStore, peers_of
from drumline_agent.protocol.inventory import Inventory
from drumline_agent.protocol.leader_orders import (
    NOTICE_PATH,
    Abandon,
    CommittedCheckpoint,
    Finish,
    Go,
)
from drumline_agent.protocol.member_reports import Fault, MemberHeartbeat, RankView
from drumline_agent.protocol.membership import Membership
from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.state.incident_log import IncidentLog
from drumline_agent.state.record_store import SignedRecord
from drumline_contract import SIGNATURE_HEADER, ExitCode, FaultClass, Incident, Member, sign

FAREWELL_SECONDS = 5.0
"""Time for which the last order is repeated to a member that does not answer."""


class Leader:
    """Leads the gang of one record to its end; cancelled when a newer record arrives.

    Args:
        service: settings, records and status of this agent.
        signed: the signed generation record.
        member: the agent of this pod's ranks.
        incidents: log of the gang's incidents.
        store: the rendezvous store of the attempt.
    """

    def __init__(
        self,
        *,
        service: Service,
        signed: SignedRecord,
        member: MemberAgent,
        incidents: IncidentLog,
        store: AttemptStore,
    ) -> None:
        self._service = service
        self._signed = signed
        self._record = signed.record
        self._member = member
        self._incidents = incidents
        self._store = store
        self._orders = OrderSender(signed.record, own=member, settings=service.settings)
        self.clients = ClientCoordinator(
            signed.record,
            orders=self._orders,
            status=service.status,
            own_index=service.settings.index,
        )
        """Coordinates the clients of the user's ranks."""
        self._heartbeats = MemberHeartbeats(signed.record, own_index=service.settings.index)
        self._restarts = RestartAccount(signed.record, incidents=incidents, status=service.status)
        self._faults = FaultCollector(incidents=incidents, restarts=self._restarts)
        self._outage = StorageOutage(service.status)
        self._early_exits = EarlyExits(
            service.status,
            own_index=service.settings.index,
            seconds=service.settings.early_exit_seconds,
        )
        self._hold = Hold(
            service.status, job=service.settings.job, seconds=signed.record.hold_seconds
        )
        # Steps whose snapshots failed to restore. A retry of them would fail in the same way.
        self._unrestorable: set[int] = set()
        """Steps that could not be restored from snapshots."""
        self._restore_step: int | None = None
        self._recovery: RecoveryTracker | None = None
        self._forwarding: set[asyncio.Task[None]] = set()
        # Created last: it reports to this leader and watches ranks and heartbeats from above.
        self._hang_monitor = HangMonitor(
            record=signed.record,
            heartbeats=self._heartbeats,
            status=service.status,
            ranks=member.ranks,
            orders=self._orders,
            own_index=service.settings.index,
            report=self.report,
        )

    def report(self, fault: Fault) -> None:
        """Report a fault of this pod or of another member.

        The ranks of a command do not know their step unless they print it. The leader's own ranks
        usually do, so their step is used.
        """
        # max: a rank that prints no steps reports 0, which would hide progress from the restart
        # policy.
        trained = self._service.status.trained_step
        if self._service.settings.launch is not None and trained is not None:
            fault = replace(fault, step=max(fault.step, trained))
        self._faults.report(fault)

    def record_heartbeat(self, heartbeat: MemberHeartbeat) -> None:
        """Record a heartbeat of a member."""
        self._heartbeats.record(heartbeat)
        self._member.ranks.changes.notify()

    def last_heard(self) -> dict[int, float]:
        """Return when each member was heard, by index, in seconds since the epoch."""
        return self._heartbeats.last_heard()

    def forward_notice(self, body: bytes, *, signature: str) -> None:
        """Send a notice to every other member, with its signature."""
        # Body and signature stay the operator's, so every member can verify them itself.
        request = HttpRequest(
            method="PUT", path=NOTICE_PATH, headers={SIGNATURE_HEADER: signature}, body=body
        )
        for member in self._followers:
            # The event loop keeps only weak references to tasks.
            task = asyncio.create_task(
                send_until_answered(request, to=member, port=self._service.settings.port)
            )
            self._forwarding.add(task)
            task.add_done_callback(self._forwarding.discard)

    async def lead(self) -> None:
        """Lead until the gang has ended."""
        # A former leader may have ended between a notice and its delivery to all members.
        self._forward_unanswered_notices()
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(deliver_to_all(self._signed, port=self._service.settings.port)),
                group.create_task(self._hang_monitor.run()),
            ]
            last = await self._attempts()
            # Helpers still run during a hold, so members see a live leader and do not report it
            # silent.
            if isinstance(last, Abandon):
                last = await self._hold.keep(last)
            for helper in (*helpers, *self._forwarding):
                helper.cancel()
        # After the helpers: a member that ends now must not be taken for a silent one.
        await self._send_last_order(last)

    def _forward_unanswered_notices(self) -> None:
        """Forward unanswered notices to pods that are new in this generation."""
        for notice in self._service.notices.unanswered:
            body = notice.encode()
            self.forward_notice(body, signature=sign(self._service.settings.token, b"notice", body))

    async def _attempts(self) -> Finish | Abandon:
        """Run attempts until one succeeds or the gang may not be restarted."""
        attempt, incident = 0, None
        # Each pass is one attempt: run it, classify its faults, decide whether another one may
        # help.
        while True:
            membership = (self._record.generation, attempt)
            outcome = await self._attempt(membership, incident)
            # Ranks are stopped or replaced from now on, so silence has no meaning.
            self._hang_monitor.membership = None
            if isinstance(outcome, Finish):
                self._outage.training_resumed()
                return outcome
            stepped = self._recovery is not None and self._recovery.stepped
            attempt += 1
            # 1. Storage still fails: wait for as long as it takes, without using up a restart
            # again.
            if self._outage.caused(outcome) and self._outage.ongoing:
                incident = incident_of(outcome, now=time.time())
                await self._outage.wait(root_cause_of(outcome))
                continue
            # 2. May the gang restart? Every class of fault is checked against its own budget.
            self._restarts.end_attempt(stepped=stepped)
            for fault in root_causes_by_class(outcome):
                objection = self._restarts.objection(fault)
                if objection is not None:
                    return abandon_order(fault, objection=objection)
            # 3. Count this restart, then remove what would break the next attempt as well.
            incident = incident_of(outcome, now=time.time())
            self._restarts.count(incident.fault_classes)
            if self._outage.caused(outcome):
                await self._outage.wait(root_cause_of(outcome))
            elif root_cause_of(outcome).in_restore and self._restore_step is not None:
                self._unrestorable.add(self._restore_step)

    async def _attempt(
        self, membership: Membership, incident: Incident | None
    ) -> Finish | list[Fault]:
        """Run one attempt, until all ranks are done or faults end it.

        Args:
            membership: membership of this attempt.
            incident: what ended the previous attempt; None for the first.
        """
        # 1. Phase "prepare": a new store on a new port, so ranks of earlier attempts cannot join
        # it.
        log(AgentEvent.ROUND_BEGUN, generation=membership[0], attempt=membership[1])
        store_port = await self._store.open(
            self._record.store_member.address,
            peers=() if self._service.settings.store_is_open else peers_of(self._record),
            on_end=lambda reason: self.report(self._store_fault(membership, reason)),
        )
        # Waits for every member, however long that takes: an incomplete gang must not train.
        inventories = await self._orders.prepare(membership)
        # 2. Decide: record the incident, then choose the step that all members restore.
        floor = newest_checkpoint_of(self._record, inventories)
        self._record_incident(membership, inventories, incident)
        plan = self._decide(membership, inventories, floor=floor)
        # 3. Phase "go": all members get the same restore step, so all ranks hold the same state.
        orders = {
            member.index: Go(
                generation=membership[0],
                attempt=membership[1],
                store_port=store_port,
                restore_step=plan.restore_step,
                fetch=plan.fetch.get(member.index, ()),
                floor=floor,
                incidents=self._incidents.to_json(),
            )
            for member in self._record.members
        }
        # 4. Train until the first of these completes. `_run` and `coordinate` never complete.
        return await first_completed(
            self._faults.collect(membership),
            self._all_done(membership),
            self._report_early_exits(membership),
            self.clients.coordinate(membership),
            self._run(membership, orders),
        )

    def _record_incident(
        self, membership: Membership, inventories: list[Inventory], incident: Incident | None
    ) -> None:
        """Take over what the members know, and add the incident that led to this attempt."""
        # Members may know incidents and faults that a lost leader had not passed on yet.
        for inventory in inventories:
            self._incidents.merge(inventory.incidents)
            for fault in inventory.faults:
                self.report(fault)
        if incident is None and membership[1] == 0:
            incident = incident_of_new_generation(self._record, inventories, now=time.time())
        if incident is not None:
            self._incidents.add(with_finished_steps(incident, inventories))

    def _decide(
        self,
        membership: Membership,
        inventories: list[Inventory],
        *,
        floor: CommittedCheckpoint | None,
    ) -> RestorePlan:
        """Plan the restore, and follow it from now on by the heartbeats of the own ranks."""
        plan = plan_restore(
            self._record,
            inventories,
            saved_step=None if floor is None else floor.step,
            excluded=self._unrestorable,
            ranks_per_process=self._service.settings.ranks_per_process,
        )
        self._restore_step = plan.restore_step
        # The time of the decision ends the stage "detected" of the recovery.
        self._incidents.update_open(decided_at=time.time())
        first_rank = self._record.first_rank(self._service.settings.index)
        self._recovery = RecoveryTracker(
            self._incidents,
            membership=membership,
            ranks=range(first_rank, first_rank + self._record.store_member.ranks),
            fetched=plan.fetches_any,
        )
        self._member.on_rank_heartbeat = self._follow
        return plan

    def _follow(self, heartbeat: Heartbeat) -> None:
        assert self._recovery is not None  # noqa: S101 - made where this is registered
        self._recovery.follow(heartbeat)
        if self._recovery.stepped:
            self._outage.training_resumed()

    async def _run(self, membership: Membership, orders: dict[int, Go]) -> Finish:
        """Start all ranks, then wait until cancelled: faults or the end arrive elsewhere."""
        await self._orders.go(orders)
        self._incidents.update_open(replaced_at=time.time())
        self._hang_monitor.membership = membership
        # Wait for cancellation: the attempt ends with one of the other racers.
        return await asyncio.get_running_loop().create_future()

    async def _all_done(self, membership: Membership) -> Finish:
        def all_done() -> Finish | None:
            done = [view for view in self._views(membership) if view.done]
            if len(done) < self._record.world_size:
                return None
            return Finish(generation=membership[0], attempt=membership[1])

        return await self._member.ranks.changes.wait_for(all_done)

    async def _report_early_exits(self, membership: Membership) -> Finish:
        """Report ranks that end long after others; of commands alone, whose ends are unannounced.

        Never returns: the fault ends the attempt.
        """
        changes = self._member.ranks.changes
        if self._service.settings.launch is not None:
            await changes.wait_for(lambda: self._early_exits.begun(self._views(membership)))
            await self._early_exits.wait()
            self.report(self._early_exits.fault(membership, self._views(membership)))
        return await asyncio.get_running_loop().create_future()

    def _views(self, membership: Membership) -> list[RankView]:
        """Return a view of every rank of the gang, or none while a member's report is missing."""
        status, remote = self._service.status, self._heartbeats.rank_views(membership)
        # Views of two memberships must not be mixed: their steps and ranks are not comparable.
        if remote is None or (status.generation, status.attempt) != membership:
            return []
        return [*self._member.ranks.views(), *remote]

    def _store_fault(self, membership: Membership, reason: str) -> Fault:
        now = time.time()
        return Fault(
            generation=membership[0],
            attempt=membership[1],
            index=self._service.settings.index,
            fault_class=FaultClass.INFRASTRUCTURE,
            cause=reason,
            at=now,
            detected_at=now,
            step=self._service.status.progress.step,
            exit_code=ExitCode.PEER_LOST,
        )

    @property
    def _followers(self) -> list[Member]:
        own = self._service.settings.index
        return [member for member in self._record.members if member.index != own]

    async def _send_last_order(self, last: Finish | Abandon) -> None:
        """Send the last order, to this pod at the end: until then the others can reach it."""
        seconds = FAREWELL_SECONDS
        # A member that misses `Finish` would report its ranks' exits as faults, so try for longer.
        if isinstance(last, Finish):
            seconds = max(seconds, self._service.settings.peer_lost_seconds)
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for member in self._followers:
                    group.create_task(self._orders.send(last, member))
        except TimeoutError:
            pass  # that member has ended before
        # Last, because obeying ends this pod, and only this leader can still send the order.
        await self._member.obey(last)
