"""A pod's part in its gang: it obeys the leader's orders and tells it what happens to its ranks.

    Prepare(m)   ranks come to rest, and the leader hears which snapshots lie here
    Go(m)        missing snapshots are fetched, ranks are resumed or forked
    Kill         ranks that keep the others waiting are ended
    Finish       every rank of the gang is done
    Abandon      the gang gives up in these pods

m is a membership, (generation, attempt). One that is lower than the newest prepared is refused, one
that is equal is answered as before: an order may come twice. The ranks live on over memberships,
also over generations, as long as the pod does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.http.message import HttpError
from drumline_trainer.agent.leader.member_heartbeats import (
    SILENT_AFTER_INTERVALS,
    heartbeat_interval_seconds,
)
from drumline_trainer.agent.processes.local_ranks import LocalRanks
from drumline_trainer.agent.protocol.inventory import MAX_FAULTS, Inventory, MembershipFailure
from drumline_trainer.agent.protocol.leader_orders import (
    Abandon,
    Finish,
    Go,
    Kill,
    LeaderOrder,
    Membership,
    Prepare,
    membership_of,
)
from drumline_trainer.agent.protocol.member_reports import Fault
from drumline_trainer.agent.snapshots.transfer import Replicator, fetch_snapshot
from drumline_trainer.contract import (
    MAX_CAUSE_CHARS,
    AgentPhase,
    ContractError,
    ExitCode,
    FaultClass,
    GenerationRecord,
    Incident,
)
from drumline_trainer.rank_protocol.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumline_trainer.agent.api.service import Service
    from drumline_trainer.agent.processes.rank_process import RankProcess
    from drumline_trainer.agent.processes.zygote_client import ZygoteClient
    from drumline_trainer.agent.snapshots.catalog import SnapshotCatalog, SnapshotInfo
    from drumline_trainer.agent.state.incident_log import IncidentLog
    from drumline_trainer.rank_protocol.heartbeat import Heartbeat, NoticeSaved


class MemberAgent:
    """The ranks of this pod under the leader's orders."""

    def __init__(
        self,
        *,
        service: Service,
        zygote: ZygoteClient,
        snapshots: SnapshotCatalog,
        incidents: IncidentLog,
    ) -> None:
        self._service = service
        self._settings = service.settings
        self._board = service.status
        self._snapshots = snapshots
        self._incidents = incidents
        self._replicator = Replicator(settings=service.settings, snapshots=snapshots)
        self._resting: asyncio.Task[None] | None = None
        self._entering: asyncio.Task[None] | None = None
        self._previous_generation = 0
        self._broken: MembershipFailure | None = None
        self._faults: deque[Fault] = deque(maxlen=MAX_FAULTS)
        self._record: GenerationRecord | None = None
        self._start_step = 0
        self.membership: Membership = (0, -1)
        """The newest prepared: lower ones are refused."""
        self.ranks = LocalRanks(
            settings=service.settings, zygote=zygote, board=service.status, listener=self
        )
        self.last_order: asyncio.Future[Finish | Abandon] = (
            asyncio.get_running_loop().create_future()
        )
        """The leader's last word."""
        self.report: Callable[[Fault], None] = lambda _: None
        """The way to the leader of the present record."""
        self.on_rank_heartbeat: Callable[[Heartbeat], None] = lambda _: None
        """Sees every heartbeat; the leader follows recoveries by it."""
        self.last_heard: Callable[[], dict[int, float]] = dict
        """When those this pod listens to were heard, by index, in seconds since the epoch."""
        service.records.on_newer = self.note_new_record
        service.notices.send_to_ranks = self.ranks.send_to_all

    async def obey(self, order: LeaderOrder) -> Inventory | None:
        """Carry out one order.

        Raises:
            HttpError: 409 for a membership this pod is past, or whose record it does not have.
        """
        record = self._record_for(membership_of(order))
        match order:
            case Prepare():
                return await self._prepare(membership_of(order))
            case Go():
                await self._go(order, record)
            case Kill(ranks=ranks, reason=reason):
                self.ranks.kill(ranks, reason=reason)
            case Finish() | Abandon():
                if not self.last_order.done():
                    self.last_order.set_result(order)
        return None

    def note_new_record(self) -> None:
        """A new generation: who was silent in the last one may be why, and counts no more."""
        record = self._service.records.current
        before, self._record = self._record, record.record if record is not None else None
        if before is not None and self._record is not None:
            self._note_lost(before, self._record)
        self._board.silent_members = ()
        self._board.publish()

    def _note_lost(self, before: GenerationRecord, now: GenerationRecord) -> None:
        """Nobody here has noticed, but a member of the last record is not in this one."""
        present = {member.pod_uid for member in now.members}
        heard = [
            heard_at
            for index, heard_at in self.last_heard().items()
            for member in before.members
            if member.index == index and member.pod_uid not in present
        ]
        if self._broken is None and heard:
            silent_after = SILENT_AFTER_INTERVALS * heartbeat_interval_seconds(before)
            noticed_at = min(time.time(), min(heard) + silent_after)
            self._broken = MembershipFailure(at=min(heard), noticed_at=noticed_at)

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End everything; see `LocalGang.end`."""
        self._replicator.close()
        for task in (self._resting, self._entering):
            if task is not None:
                task.cancel()
        return await self.ranks.end(grace_seconds=grace_seconds)

    def on_fault(self, fault: Fault) -> None:
        """A rank of ours ended, or lost its peers."""
        if fault.membership == self.membership and self._broken is None:
            self._broken = MembershipFailure(at=fault.at, noticed_at=fault.detected_at)
        if not fault.consequence:
            self._faults.append(fault)
        self.report(fault)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A rank of ours moves."""
        self.on_rank_heartbeat(heartbeat)

    def on_snapshot(self, process: RankProcess, shard: SnapshotInfo) -> None:
        """A rank of ours has a snapshot."""
        if (shard.generation, shard.attempt) == self.membership:
            self._snapshots.add_own(shard)
            self._replicator.offer(shard, process=process)

    def on_saved(self, saved: NoticeSaved) -> None:
        """A rank of ours has answered a notice."""
        self._service.notices.record_answer(saved)

    def _record_for(self, membership: Membership) -> GenerationRecord:
        current = self._service.records.current
        if current is None or current.generation != membership[0]:
            known = self._service.records.generation
            raise HttpError(HTTPStatus.CONFLICT, f"the record here is of generation {known}")
        if membership < self.membership:
            raise HttpError(HTTPStatus.CONFLICT, f"{membership} is below {self.membership}")
        return current.record

    async def _prepare(self, membership: Membership) -> Inventory:
        if membership > self.membership:
            self._previous_generation = self.membership[0]
            self.membership = membership
            if self._entering is not None:
                self._entering.cancel()
                await asyncio.wait([self._entering])
                self._entering = None
            self._board.phase = AgentPhase.STARTING
            self._resting = asyncio.create_task(self.ranks.quiesce())
        if self._resting is not None:
            await asyncio.shield(self._resting)
        trained = self._board.trained_step
        return Inventory(
            index=self._settings.index,
            previous_generation=self._previous_generation,
            broken=self._broken,
            step=self._start_step if trained is None else trained,
            saved=self._board.newest_checkpoint,
            shards=self._snapshots.all,
            incidents=self._incidents.all,
            faults=tuple(self._faults),
        )

    async def _go(self, go: Go, record: GenerationRecord) -> None:
        if self.membership != membership_of(go) or self._resting is None:
            raise HttpError(HTTPStatus.CONFLICT, "not prepared")
        if self._entering is None:
            self._incidents.merge([Incident.parse(raw) for raw in go.incidents])
            if go.floor is not None:
                self._board.note_checkpoint(go.floor)
            self._entering = asyncio.create_task(self._enter_or_report(go, record))
        await asyncio.shield(self._entering)

    async def _enter_or_report(self, go: Go, record: GenerationRecord) -> None:
        """Whatever this pod lacks for it (room, descriptors) is a fault of this attempt."""
        try:
            await self._enter(go, record)
        except (OSError, ContractError) as error:
            self.report(self._fetch_fault(str(error)))

    async def _enter(self, go: Go, record: GenerationRecord) -> None:
        self._snapshots.keep_history(go.restore_step, world_size=record.world_size)
        self._replicator.begin(record)
        reasons = await asyncio.gather(
            *(
                fetch_snapshot(
                    source.shard,
                    holder=next(one for one in record.members if one.index == source.holder),
                    snapshots=self._snapshots,
                    settings=self._settings,
                )
                for source in go.fetch
            )
        )
        failed = [reason for reason in reasons if reason]
        if failed:
            self.report(self._fetch_fault(failed[0]))
            return
        self._broken, self._start_step = None, go.restore_step or 0
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
                generation=go.generation,
                attempt=go.attempt,
                checkpoint_folder=settings.checkpoint_folder,
                acknowledged_step=None if floor is None else floor.step,
                acknowledged_digest="" if floor is None else floor.digest,
                snapshot_folder=self._snapshots.folder,
                restore_snapshot=go.restore_step,
                address=here.address,
            )
            for local_rank in range(here.ranks)
        ]
