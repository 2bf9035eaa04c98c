"""A pod's part in its gang: it obeys the leader's orders and reports the faults of its ranks.

    Prepare(m)   quiesce the ranks and answer with an inventory
    Go(m)        fetch missing snapshots, resume or fork the ranks
    Kill         kill ranks that hang
    ShowStacks   answer where ranks that hang are in their program
    Finish       every rank of the gang is done
    Abandon      the gang gives up in these pods

m is a membership, (generation, attempt). A membership below the newest that was prepared is
rejected; for an equal one the answer is the same as before, as an order may arrive twice. Ranks
outlive memberships, also generations, as long as the pod lives.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from drumline_agent.api.service import Service
from drumline_agent.http.message import HttpError
from drumline_agent.processes.ranks import RankListener, Ranks
from drumline_agent.protocol.inventory import MAX_FAULTS, Inventory, MembershipFailure
from drumline_agent.protocol.leader_orders import (
    Abandon,
    CheckpointSaved,
    ClientOrder,
    Finish,
    Go,
    Kill,
    LeaderOrder,
    Prepare,
    ShowStacks,
    membership_of,
)
from drumline_agent.protocol.member_reports import (
    SILENT_AFTER_INTERVALS,
    Fault,
    heartbeat_interval_seconds,
)
from drumline_agent.protocol.membership import NO_MEMBERSHIP, Membership
from drumline_agent.protocol.rank_stacks import RankStacks
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.rank_protocol.messages import NoticeSaved
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.snapshots.replication import Replicator
from drumline_agent.snapshots.transfer import FetchError, fetch_snapshot
from drumline_agent.state.incident_log import IncidentLog
from drumline_contract import (
    MAX_CAUSE_CHARS,
    AgentPhase,
    ContractError,
    ExitCode,
    FaultClass,
    GenerationRecord,
    Incident,
)


class MemberAgent:
    """The ranks of this pod under the leader's orders.

    Args:
        service: settings, records and status of this agent.
        make_ranks: creates the ranks of the pod for their listener.
        snapshots: snapshots that this pod holds.
        incidents: log of the gang's incidents.
    """

    def __init__(
        self,
        *,
        service: Service,
        make_ranks: Callable[[RankListener], Ranks],
        snapshots: SnapshotCatalog,
        incidents: IncidentLog,
    ) -> None:
        self._service = service
        self._settings = service.settings
        self._status = service.status
        self._snapshots = snapshots
        self._incidents = incidents
        # 1. Work that outlives an order: another order may cancel it.
        self._replicator = Replicator(settings=service.settings, snapshots=snapshots)
        self._quiescing: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._previous_generation = 0
        self._failure: MembershipFailure | None = None
        self._failed_by_consequence = False
        self._faults: deque[Fault] = deque(maxlen=MAX_FAULTS)
        self._record: GenerationRecord | None = None
        self._start_step = 0
        # 2. What the leader last ordered, and what the ranks made of it.
        self.membership: Membership = NO_MEMBERSHIP
        """The newest that was prepared: orders of lower ones are rejected."""
        self.ranks = make_ranks(self)
        self.last_order: asyncio.Future[Finish | Abandon] = (
            asyncio.get_running_loop().create_future()
        )
        """The leader's last order, once it has arrived."""
        self.device_fault: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()
        """Set once a GPU of this pod is missing or broken. The pod then ends and starts no rank."""
        # 3. Callbacks, without effect until a program or the leader in this pod sets them.
        self.report: Callable[[Fault], None] = lambda _: None
        """Reports a fault to the leader of the current record."""
        self.all_reported: Callable[[], Coroutine[Any, Any, None]] = nothing_to_send
        """Returns once the leader has received every fault."""
        self.on_rank_heartbeat: Callable[[Heartbeat], None] = lambda _: None
        """Called with every heartbeat; the leader follows recoveries by it."""
        self.last_heard: Callable[[], dict[int, float]] = dict
        """Returns the time of the last report of each member, by index, in seconds since 1970."""
        self.on_record: Callable[[GenerationRecord], None] = lambda _: None
        """Called with the record of every new generation, before any order of that generation."""
        self.on_client_order: Callable[[ClientOrder | CheckpointSaved], None] = lambda _: None
        """Called with what the leader has for the clients of the ranks."""
        # 4. At last, when all of the above is there: the service may call at once.
        service.records.on_newer = self.note_new_record
        service.notices.send_to_ranks = self.ranks.send_to_all

    async def obey(self, order: LeaderOrder) -> Inventory | RankStacks | None:
        """Carry out one order.

        Raises:
            HttpError: 409 for a membership below the newest one, or whose record it does not have.
        """
        # Reject orders of a wrong membership before anything is done.
        record = self._record_for(membership_of(order))
        match order:
            case Prepare():
                return await self._prepare(membership_of(order))
            case Go():
                await self._go(order, record)
            case Kill(ranks=ranks, reason=reason):
                self.ranks.kill(ranks, reason=reason)
            case ShowStacks():
                return RankStacks(places=await self.ranks.places())
            case ClientOrder() | CheckpointSaved():
                self.on_client_order(order)
            case Finish() | Abandon():
                if not self.last_order.done():
                    self.last_order.set_result(order)
        return None

    def note_new_record(self) -> None:
        """Adopt a new generation: members that were silent in the last one no longer count."""
        record = self._service.records.current
        before, self._record = self._record, record.record if record is not None else None
        if self._record is not None:
            self.on_record(self._record)
            if before is not None:
                self._record_lost_member(before, self._record)
        # Silence was counted against members of the old generation.
        self._status.silent_members = ()
        self._status.publish()

    def _record_lost_member(self, before: GenerationRecord, now: GenerationRecord) -> None:
        """Record a lost member as the last membership's failure, unless a rank failed first.

        Ranks that have not trained may not be connected to the lost ones yet. They notice the loss
        late, so the member's last sign of life counts.
        """
        present = {member.pod_uid for member in now.members}
        heard = [
            heard_at
            for index, heard_at in self.last_heard().items()
            for member in before.members
            if member.index == index and member.pod_uid not in present
        ]
        late = self._failed_by_consequence and self._status.trained_step is None
        failure = self._failure
        # No rank here has failed: ranks may wait in a collective until they are interrupted.
        if heard and (failure is None or (late and min(heard) < failure.at)):
            silent_after = SILENT_AFTER_INTERVALS * heartbeat_interval_seconds(before)
            known_at = time.time() if failure is None else failure.noticed_at
            noticed_at = min(known_at, min(heard) + silent_after)
            self._failure = MembershipFailure(at=min(heard), noticed_at=noticed_at)

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End all ranks; see `Ranks.end`."""
        self._replicator.close()
        for task in (self._quiescing, self._starting):
            if task is not None:
                task.cancel()
        return await self.ranks.end(grace_seconds=grace_seconds)

    def on_fault(self, fault: Fault) -> None:
        """Handle the end of a rank of this pod, or the loss of its peers."""
        # The first fault is when this membership broke, as the next leader asks.
        if fault.membership == self.membership and self._failure is None:
            self._failure = MembershipFailure(at=fault.at, noticed_at=fault.detected_at)
            self._failed_by_consequence = fault.consequence
        # Kept for the inventory: a leader that is lost may not have passed them on.
        if not fault.consequence:
            self._faults.append(fault)
        # This pod can never train again, so it ends and is replaced.
        if fault.exit_code == ExitCode.DEVICE and not self.device_fault.done():
            self.device_fault.set_result(fault)
        self.report(fault)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Handle a heartbeat of a rank of this pod."""
        self.on_rank_heartbeat(heartbeat)

    def on_snapshot(self, snapshot: SnapshotInfo, *, on_copied: Callable[[float], None]) -> None:
        """Handle a new snapshot of a rank of this pod."""
        if snapshot.membership == self.membership:
            self._snapshots.add_own(snapshot)
            self._replicator.offer(snapshot, on_copied=on_copied)

    def on_saved(self, saved: NoticeSaved) -> None:
        """Handle the answer of a rank of this pod to a notice."""
        self._service.notices.record_answer(saved)

    def _record_for(self, membership: Membership) -> GenerationRecord:
        current = self._service.records.current
        if current is None or current.generation != membership[0]:
            known = self._service.records.generation
            raise HttpError(HTTPStatus.CONFLICT, f"the record here is of generation {known}")
        # A deposed leader is late. Its order must not undo the present attempt.
        if membership < self.membership:
            raise HttpError(HTTPStatus.CONFLICT, f"{membership} is below {self.membership}")
        if self.device_fault.done():
            raise HttpError(HTTPStatus.CONFLICT, "this pod ends, as a GPU of it has failed")
        return current.record

    async def _prepare(self, membership: Membership) -> Inventory:
        # 1. First order of this attempt: stop everything of the attempt before.
        if membership > self.membership:
            self._previous_generation = self.membership[0]
            self.membership = membership
            if self._starting is not None:
                self._starting.cancel()
                # Wait for the end of the cancelled start, or it could still fork ranks.
                await asyncio.wait([self._starting])
                self._starting = None
            self._status.phase = AgentPhase.STARTING
            self._quiescing = asyncio.create_task(self.ranks.quiesce())
        # 2. shield: the leader may repeat the order, and all requests wait for one task.
        if self._quiescing is not None:
            await asyncio.shield(self._quiescing)
        # 3. Answer with all that a new leader may not know.
        trained = self._status.trained_step
        return Inventory(
            index=self._settings.index,
            previous_generation=self._previous_generation,
            broken=self._failure,
            step=self._start_step if trained is None else trained,
            saved=self._status.newest_checkpoint,
            shards=self._snapshots.all,
            incidents=self._incidents.all,
            faults=tuple(self._faults),
        )

    async def _go(self, go: Go, record: GenerationRecord) -> None:
        if self.membership != membership_of(go) or self._quiescing is None:
            raise HttpError(HTTPStatus.CONFLICT, "not prepared")
        # Repeated orders wait for the first one: ranks are started once per attempt.
        if self._starting is None:
            self._incidents.merge([Incident.parse(raw) for raw in go.incidents])
            if go.floor is not None:
                self._status.note_checkpoint(go.floor)
            self._starting = asyncio.create_task(self._start_or_report(go, record))
        await asyncio.shield(self._starting)

    async def _start_or_report(self, go: Go, record: GenerationRecord) -> None:
        """Start the attempt. Missing snapshots, memory or descriptors are this pod's fault."""
        try:
            await self._start(go, record)
        except (FetchError, OSError, ContractError) as error:
            self.report(self._fetch_fault(str(error)))

    async def _start(self, go: Go, record: GenerationRecord) -> None:
        ranks = record.world_size * self._settings.ranks_per_process
        # 1. Drop snapshots of an abandoned future: their steps will be trained again.
        self._snapshots.keep_history(go.restore_step, world_size=ranks)
        self._replicator.begin(record)
        members = {member.index: member for member in record.members}
        # 2. Fetch what is missing. All fetches end before the first error is raised.
        results = await asyncio.gather(
            *(
                fetch_snapshot(
                    source.shard,
                    holder=members[source.holder],
                    snapshots=self._snapshots,
                    settings=self._settings,
                )
                for source in go.fetch
            ),
            return_exceptions=True,
        )
        for error in results:
            if error is not None:
                raise error
        # 3. Start the ranks, then repeat notices that they have not seen.
        self._failure, self._start_step = None, go.restore_step or 0
        await self.ranks.start_attempt(self._placements(go, record))
        self._service.notices.resend(present={member.pod_uid for member in record.members})

    def _fetch_fault(self, reason: str) -> Fault:
        now = time.time()
        return Fault(
            generation=self.membership[0],
            attempt=self.membership[1],
            index=self._settings.index,
            fault_class=FaultClass.INFRASTRUCTURE,
            cause=reason[:MAX_CAUSE_CHARS],
            at=now,
            detected_at=now,
            exit_code=ExitCode.PEER_LOST,
            in_restore=True,
        )

    def _placements(self, go: Go, record: GenerationRecord) -> list[Placement]:
        settings, floor = self._settings, go.floor
        here = next(member for member in record.members if member.index == settings.index)
        # Ranks are numbered by pod, so that those of a node are neighbours.
        first = record.first_rank(settings.index)
        return [
            Placement(
                rank=first + local_rank,
                world_size=record.world_size,
                local_rank=local_rank,
                local_world_size=here.ranks,
                store_host=record.store_member.address,
                store_port=go.store_port,
                owner=record.job_uid,
                job=f"{settings.namespace}/{settings.job}",
                generation=go.generation,
                attempt=go.attempt,
                checkpoint_folder=settings.checkpoint_folder,
                checkpoint_bucket=settings.checkpoint_bucket,
                acknowledged_step=None if floor is None else floor.step,
                acknowledged_digest="" if floor is None else floor.digest,
                snapshot_folder=self._snapshots.folder,
                restore_snapshot=go.restore_step,
                previous_ranks=record.previous_ranks,
                address=here.address,
            )
            for local_rank in range(here.ranks)
        ]


async def nothing_to_send() -> None:
    """Send nothing: the leader's own pod reports to itself."""
