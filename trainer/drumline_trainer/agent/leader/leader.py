r"""The leader: the agent of the record's store member decides for the gang, nobody else does.

    round (generation, 0) -> train -> fault -> settle -> round (generation, 1) -> train -> ...
                                  \\-> all ranks done -> Finish
                                  \\-> no restart can help, or none is left -> Abandon

It decides only about the newest membership, so nothing is decided twice: a fault of an older one
joins the incident that the recovery is from. It is never replaced: if it is gone, the next
generation has another one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from drumline_trainer.agent.api.record_delivery import deliver_to_all, send_until_answered
from drumline_trainer.agent.api.service import first_completed
from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.http.message import HttpRequest
from drumline_trainer.agent.leader.hang_monitor import HangMonitor
from drumline_trainer.agent.leader.member_heartbeats import MemberHeartbeats
from drumline_trainer.agent.leader.root_cause import (
    abandon_order,
    incident_of,
    incident_of_new_generation,
    root_cause_of,
    root_causes_by_class,
    with_fault,
)
from drumline_trainer.agent.leader.rounds import (
    OrderSender,
    RestorePlan,
    newest_checkpoint_of,
    plan_restore,
)
from drumline_trainer.agent.processes import fault_classification
from drumline_trainer.agent.protocol.leader_orders import (
    NOTICE_PATH,
    Abandon,
    Finish,
    Go,
)
from drumline_trainer.agent.protocol.member_reports import Fault, MemberHeartbeat
from drumline_trainer.agent.state.incident_log import RecoveryTracker
from drumline_trainer.contract import SIGNATURE_HEADER, ExitCode, FaultClass, sign

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drumline_trainer.agent.api.service import Service
    from drumline_trainer.agent.member.member import MemberAgent
    from drumline_trainer.agent.processes.rendezvous_store import RendezvousStore
    from drumline_trainer.agent.protocol.inventory import Inventory
    from drumline_trainer.agent.protocol.leader_orders import CommittedCheckpoint, Membership
    from drumline_trainer.agent.state.incident_log import IncidentLog
    from drumline_trainer.agent.state.record_store import SignedRecord
    from drumline_trainer.contract import Incident
    from drumline_trainer.contract import Member as Peer

SETTLE_SECONDS = 0.08
"""Faults so close together are one: two ranks of a node, say."""
SUSPECT_SECONDS = 2.0
"""How long the cause is waited for when only its consequences are known."""
FAREWELL_SECONDS = 5.0
"""How long an order to end is repeated to a member that does not answer."""


class Leader:
    """Leads the gang of one record to its end; cancelled when a newer record comes."""

    def __init__(
        self,
        *,
        service: Service,
        signed: SignedRecord,
        member: MemberAgent,
        incidents: IncidentLog,
        store: RendezvousStore,
    ) -> None:
        self._service = service
        self._signed = signed
        self._record = signed.record
        self._member = member
        self._incidents = incidents
        self._store = store
        self._orders = OrderSender(signed.record, own=member, settings=service.settings)
        self._roster = MemberHeartbeats(signed.record, own_index=service.settings.index)
        self._faults: asyncio.Queue[Fault] = asyncio.Queue()
        self._restarts: dict[FaultClass, int] = {}
        self._stuck_attempts = 0
        self._refused: set[int] = set()
        self._restore_step: int | None = None
        self._recovery: RecoveryTracker | None = None
        self._handing_on: set[asyncio.Task[None]] = set()
        self._watchman = HangMonitor(
            record=signed.record,
            roster=self._roster,
            board=service.status,
            gang=member.ranks,
            orders=self._orders,
            own_index=service.settings.index,
            report=self.report,
        )

    def report(self, fault: Fault) -> None:
        """Something broke, here or at a member."""
        self._faults.put_nowait(fault)

    def record_heartbeat(self, beat: MemberHeartbeat) -> None:
        """A member lives."""
        self._roster.record(beat)
        self._member.ranks.changes.notify()

    def last_heard(self) -> dict[int, float]:
        """When each member was heard, in seconds since the epoch."""
        return self._roster.last_heard()

    def forward_notice(self, body: bytes, *, signature: str) -> None:
        """Give a notice to every member, as it was signed."""
        request = HttpRequest(
            method="PUT", path=NOTICE_PATH, headers={SIGNATURE_HEADER: signature}, body=body
        )
        for member in self._others:
            task = asyncio.create_task(
                send_until_answered(request, to=member, port=self._service.settings.port)
            )
            self._handing_on.add(task)
            task.add_done_callback(self._handing_on.discard)

    def _repeat_notices(self) -> None:
        """Pods that are new in this generation do not know what the others were asked."""
        for notice in self._service.notices.unanswered:
            body = notice.encode()
            self.forward_notice(body, signature=sign(self._service.settings.token, b"notice", body))

    async def lead(self) -> None:
        """Lead until the gang has ended."""
        self._repeat_notices()
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(deliver_to_all(self._signed, port=self._service.settings.port)),
                group.create_task(self._watchman.run()),
            ]
            last = await self._attempts()
            for helper in (*helpers, *self._handing_on):
                helper.cancel()
        await self._tell_all(last)

    async def _attempts(self) -> Finish | Abandon:
        attempt, incident = 0, None
        while True:
            membership = (self._record.generation, attempt)
            outcome = await self._attempt(membership, incident)
            self._watchman.membership = None
            if isinstance(outcome, Finish):
                return outcome
            stepped = self._recovery is not None and self._recovery.stepped
            self._stuck_attempts = 0 if stepped else self._stuck_attempts + 1
            for fault in root_causes_by_class(outcome):
                objection = self._objection(fault)
                if objection is not None:
                    return abandon_order(fault, objection=objection)
            incident = incident_of(outcome, now=time.time())
            self._count(incident.fault_classes)
            self._refuse_what_failed(root_cause_of(outcome))
            attempt += 1

    async def _attempt(
        self, membership: Membership, incident: Incident | None
    ) -> Finish | list[Fault]:
        log(AgentEvent.ROUND_BEGUN, generation=membership[0], attempt=membership[1])
        store_port = await self._store.open(
            self._record.store_member.address,
            on_end=lambda reason: self.report(self._store_fault(membership, reason)),
        )
        inventories = await self._orders.prepare(membership)
        floor = newest_checkpoint_of(self._record, inventories)
        chosen = self._decide(membership, inventories, incident, floor=floor)
        orders = {
            member.index: Go(
                generation=membership[0],
                attempt=membership[1],
                store_port=store_port,
                restore_step=chosen.restore_step,
                fetch=chosen.fetch.get(member.index, ()),
                floor=floor,
                incidents=self._incidents.to_json(),
            )
            for member in self._record.members
        }
        return await first_completed(
            self._collect(membership), self._finished(membership), self._run(membership, orders)
        )

    def _decide(
        self,
        membership: Membership,
        inventories: list[Inventory],
        incident: Incident | None,
        *,
        floor: CommittedCheckpoint | None,
    ) -> RestorePlan:
        for inventory in inventories:
            self._incidents.merge(inventory.incidents)
            for fault in inventory.faults:
                self.report(fault)
        if incident is None and membership[1] == 0:
            incident = incident_of_new_generation(self._record, inventories, now=time.time())
        if incident is not None:
            self._incidents.add(incident)
        chosen = plan_restore(
            self._record,
            inventories,
            saved_step=None if floor is None else floor.step,
            refused=self._refused,
        )
        self._restore_step = chosen.restore_step
        self._incidents.update_open(decided_at=time.time())
        first_rank = self._record.first_rank(self._service.settings.index)
        ranks = self._record.store_member.ranks
        self._recovery = RecoveryTracker(
            self._incidents,
            membership=membership,
            ranks=range(first_rank, first_rank + ranks),
            fetched=chosen.fetches_any,
        )
        self._member.on_rank_heartbeat = self._recovery.follow
        return chosen

    async def _run(self, membership: Membership, orders: dict[int, Go]) -> Finish:
        """Start everyone; what comes then is news of faults or of the end."""
        await self._orders.go(orders)
        self._incidents.update_open(replaced_at=time.time())
        self._watchman.membership = membership
        return await asyncio.get_running_loop().create_future()

    async def _finished(self, membership: Membership) -> Finish:
        def all_done() -> Finish | None:
            board, others = self._service.status, self._roster.rank_views(membership)
            if others is None or (board.generation, board.attempt) != membership:
                return None
            done = [view for view in (*self._member.ranks.views(), *others) if view.done]
            if len(done) < self._record.world_size:
                return None
            return Finish(generation=membership[0], attempt=membership[1])

        return await self._member.ranks.changes.wait_for(all_done)

    async def _collect(self, membership: Membership) -> list[Fault]:
        """The faults that end this membership, once the cause is among them or not to be had."""
        faults = [await self._next_fault(membership)]
        try:
            async with asyncio.timeout(SUSPECT_SECONDS):
                while all(fault.consequence for fault in faults):
                    faults.append(await self._next_fault(membership))
        except TimeoutError:
            return faults
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while True:
                    faults.append(await self._next_fault(membership))
        except TimeoutError:
            return faults

    async def _next_fault(self, membership: Membership) -> Fault:
        while True:
            fault = await self._faults.get()
            if fault.membership == membership:
                if not fault.consequence:
                    log(AgentEvent.FAULT, **asdict(fault))
                return fault
            if fault.membership < membership and not fault.consequence:
                fatal = self._join(fault)
                if fatal:
                    generation, attempt = membership
                    return replace(fault, generation=generation, attempt=attempt)

    def _join(self, fault: Fault) -> bool:
        """A fault that is heard of when the recovery from its membership runs: it is part of that.

        Returns whether the gang must not go on after it.
        """
        number = (fault.generation, fault.attempt + 1)
        known = self._incidents.by_membership(number)
        if known is not None and known.first_step_at is not None:
            return False  # told again
        counted = known.fault_classes if known is not None else ()
        joined = (
            incident_of([fault], now=time.time()) if known is None else with_fault(known, fault)
        )
        if joined == known:
            return False
        log(AgentEvent.FAULT, **asdict(fault))
        if fault.fault_class not in counted:
            if self._objection(fault) is not None:
                return True
            self._count([fault.fault_class])
        self._incidents.add(joined)
        return False

    def _objection(self, fault: Fault) -> str | None:
        return fault_classification.objection_to_restart(
            fault,
            incidents=self._incidents.all,
            restarts_left=self._record.restarts_left,
            restarts=self._restarts,
            stuck_attempts=self._stuck_attempts,
        )

    def _count(self, fault_classes: Iterable[FaultClass]) -> None:
        for each in fault_classes:
            for counts in (self._restarts, self._service.status.restarts):
                counts[each] = counts.get(each, 0) + 1

    def _refuse_what_failed(self, culprit: Fault) -> None:
        if culprit.in_restore and self._restore_step is not None:
            self._refused.add(self._restore_step)

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
    def _others(self) -> list[Peer]:
        own = self._service.settings.index
        return [member for member in self._record.members if member.index != own]

    async def _tell_all(self, last: Finish | Abandon) -> None:
        """The last order goes to this pod last: it is the one that all others can reach."""
        seconds = FAREWELL_SECONDS
        if isinstance(last, Finish):
            seconds = max(seconds, self._service.settings.peer_lost_seconds)
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for member in self._others:
                    group.create_task(self._orders.send(last, member))
        except TimeoutError:
            pass  # it has gone before us
        await self._member.obey(last)
