"""The ranks of this pod: forked, quiesced, resumed, and ended together.

A process outlives the attempt it was forked for. When the gang breaks it quiesces, and the next
attempt resumes it under a new placement. A process that does not quiesce in time is killed and
replaced by a new fork.

A rank that has reported that it is done has succeeded, even if its process fails afterwards. Its
last checkpoint is committed by then, and only the teardown of a library can fail. It gets
`teardown_seconds` for that and is killed after. Exit code 0 alone does not mean success, because
any library can end a process with it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Sequence

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.exit_codes import describe_exit_code
from drumline_agent.base.settings import AgentSettings
from drumline_agent.base.tasks import wait_for_all
from drumline_agent.processes.rank_faults import RankFaults
from drumline_agent.processes.rank_process import RankProcess, fork_rank
from drumline_agent.processes.ranks import RankListener
from drumline_agent.processes.zygote_client import KILL_SECONDS, ZygoteClient
from drumline_agent.protocol.member_reports import RankView, StepCompute
from drumline_agent.protocol.rank_stacks import RankStack
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import (
    CollectivesReported,
    NoticeSaved,
    PromptsContinued,
    Quiesced,
    RankError,
    RankReturned,
    SnapshotTaken,
    parse_rank_message,
)
from drumline_agent.rank_protocol.orders import Interrupt, RankOrder, Replicated, Resume, SaveNotice
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import ExitCode

MIN_PATIENCE_SECONDS = 2.0
STEPS_OF_PATIENCE = 4
LONG_PATIENCE_SECONDS = 30.0
"""For starting, restoring, compiling, writing: phases that take long now and then."""
LONG_FACTOR = 10
_LONG_PHASES = (
    *(Phase.STARTING, Phase.RESTORING, Phase.EVALUATION),
    *(Phase.SNAPSHOT, Phase.CHECKPOINT),
)


def patience_seconds(newest: Heartbeat | None, *, step_seconds: float | None) -> float:
    """Return how many seconds a rank may be silent after this heartbeat.

    Args:
        newest: the rank's newest heartbeat.
        step_seconds: usual time of a step; None if none was measured.
    """
    if newest is None or step_seconds is None or newest.phase in _LONG_PHASES:
        return max(LONG_PATIENCE_SECONDS, LONG_FACTOR * (step_seconds or 0.0))
    return max(MIN_PATIENCE_SECONDS, STEPS_OF_PATIENCE * step_seconds)


LAST_WORDS_SECONDS = 0.1
"""For a hung rank to write its flight record (`profiling.flight_recorder`) after SIGUSR1."""
ASKED_AFTER = 0.5
"""Share of the hang timeout after which the agent requests a silent rank's progress in collectives.
The answers are then known when the timeout ends."""
DRAIN_SECONDS = 2.0
"""Time for which the pipes of ended ranks are read. An orphan process may hold them open."""
BEFORE_FIRST_HEARTBEAT = (-1, 0, -1)
"""Position of a rank that has sent no heartbeat yet."""


class LocalRanks:
    """The processes of this pod's ranks, by local rank.

    Args:
        settings: settings of the agent.
        zygote: forks ranks.
        status: status of this pod's ranks.
        listener: called for faults and exits.
    """

    def __init__(
        self,
        *,
        settings: AgentSettings,
        zygote: ZygoteClient,
        status: RankStatusStore,
        listener: RankListener,
    ) -> None:
        self._settings = settings
        self._zygote = zygote
        self._status = status
        self._listener = listener
        self._ranks: dict[int, RankProcess] = {}
        self._leave_requested = False
        self._faults = RankFaults(status=status, index=settings.index)
        self.changes = ChangeNotifier()
        """Notified when a rank is done, has quiesced or has ended."""
        self.shows_places = False
        """Its ranks report their progress in collectives instead."""

    @property
    def all_preempted(self) -> bool:
        """True if every rank has ended after a notice to leave."""
        ranks = self._ranks.values()
        return all(rank.succeeded for rank in ranks) and any(rank.preempted for rank in ranks)

    def views(self) -> tuple[RankView, ...]:
        """Return a view of every rank of the present attempt, as of now."""
        present = (self._status.generation, self._status.attempt)
        return tuple(
            self._view(rank, now=time.monotonic())
            for rank in self._ranks.values()
            if rank.placement.membership == present
        )

    def send_to_all(self, order: RankOrder) -> None:
        """Write an order to every rank."""
        self._leave_requested |= isinstance(order, SaveNotice) and order.leave
        for rank in self._ranks.values():
            rank.send_order(order)

    def kill(self, numbers: Iterable[int], *, reason: str) -> None:
        """Kill ranks that hang, a moment after they were asked to dump what they do."""
        wanted = set(numbers)
        loop = asyncio.get_running_loop()
        for rank in self._ranks.values():
            if rank.placement.rank in wanted and rank.alive and not rank.done:
                log(AgentEvent.RANK_KILLED, rank=rank.placement.rank, reason=reason)
                rank.kill_reason = reason
                # SIGUSR1 first: the rank writes its flight record, which shows where it hangs.
                self._zygote.signal(rank.child, signal.SIGUSR1)
                loop.call_later(LAST_WORDS_SECONDS, self._zygote.signal, rank.child, signal.SIGKILL)

    async def places(self) -> tuple[RankStack, ...]:
        """Return nothing."""
        return ()

    async def quiesce(self) -> None:
        """Quiesce every rank; ranks that do not quiesce in time are killed."""
        async with asyncio.TaskGroup() as group:
            for rank in self._ranks.values():
                group.create_task(self._quiesce_rank(rank))

    async def start_attempt(self, placements: Sequence[Placement]) -> None:
        """Resume the ranks that are quiesced and fork the rest, one for each placement."""
        first = placements[0]
        # 1. Forget the attempt before. Its heartbeats must not be taken for new ones.
        self._status.begin_attempt(
            generation=first.generation,
            attempt=first.attempt,
            ranks=range(first.rank, first.rank + len(placements)),
        )
        self._leave_requested = False
        # 2. A smaller gang has fewer ranks in this pod.
        for local_rank in [number for number in self._ranks if number >= len(placements)]:
            await self._end_process(self._ranks.pop(local_rank))
        # 3. Resume the quiesced processes, and fork the missing ones.
        resumed = [placement.rank for placement in placements if self._resume(placement)]
        for placement in placements:
            if placement.rank not in resumed:
                await self._fork(placement)
        # 4. Wait for process ids, so that the log shows which process is which rank.
        log(
            AgentEvent.RANKS_STARTED,
            generation=first.generation,
            attempt=first.attempt,
            pids={rank.placement.rank: await rank.child.pid for rank in self._ranks.values()},
            resumed=resumed,
            world_size=first.world_size,
            restore_snapshot=first.restore_snapshot,
        )

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End every process and print its remaining output. Return whether all had done their work.

        With a grace period the ranks get SIGTERM first.
        """
        ranks = list(self._ranks.values())
        # 1. Let ranks save within the grace period.
        if grace_seconds > 0:
            for rank in ranks:
                self._zygote.signal(rank.child, signal.SIGTERM)
            await wait_for_all([rank.child.exited for rank in ranks], seconds=grace_seconds)
        # 2. Judge them before they are killed.
        well = [rank.done or _ended_with_zero(rank) for rank in ranks]
        async with asyncio.TaskGroup() as group:
            for rank in ranks:
                group.create_task(self._end_process(rank))
        # 3. Print what is still in the pipes.
        await wait_for_all([rank.output_reader.ended for rank in ranks], seconds=DRAIN_SECONDS)
        for rank in ranks:
            rank.close()
        return bool(ranks) and all(well)

    async def wait_for_teardown(self) -> None:
        """Wait until the ranks that are done have ended, at most `teardown_seconds`."""
        exits = [rank.child.exited for rank in self._ranks.values()]
        await wait_for_all(exits, seconds=self._settings.teardown_seconds)

    async def _quiesce_rank(self, rank: RankProcess) -> None:
        if rank.is_quiesced:
            return
        if rank.alive and not rank.done:
            number, attempt = rank.placement.membership
            # A full or closed pipe means that the process does not read: kill it below.
            if rank.send_order(Interrupt(generation=number, attempt=attempt)):
                await self._wait_until_quiesced_or_ended(rank)
        if not rank.is_quiesced:
            await self._end_process(rank)

    async def _wait_until_quiesced_or_ended(self, rank: RankProcess) -> None:
        # A rank leaves between steps, so slow steps need more time than the default.
        seconds = max(self._settings.quiesce_seconds, 2 * (self._status.step_seconds or 0.0))
        try:
            async with asyncio.timeout(seconds):
                await rank.changed.wait_for(lambda: rank.is_quiesced or not rank.alive or None)
        except TimeoutError:
            log(AgentEvent.RANK_LINGERS, rank=rank.placement.rank, seconds=seconds)

    async def _end_process(self, rank: RankProcess) -> None:
        """Kill a process. Its end is then not a fault."""
        rank.ended_by_agent = True
        self._zygote.signal(rank.child, signal.SIGKILL)
        await wait_for_all([rank.child.exited], seconds=KILL_SECONDS)

    def _resume(self, placement: Placement) -> bool:
        rank = self._ranks.get(placement.local_rank)
        # A process that missed an order would have another placement than its agent believes.
        if rank is None or not rank.is_quiesced or not rank.send_order(Resume(placement=placement)):
            return False
        rank.resume(placement)
        return True

    async def _fork(self, placement: Placement) -> None:
        former = self._ranks.get(placement.local_rank)
        # Two processes of one rank would share a GPU.
        if former is not None:
            await self._end_process(former)
        self._ranks[placement.local_rank] = await fork_rank(
            placement, zygote=self._zygote, on_line=self._on_line, on_exit=self._on_exit
        )

    def _on_line(self, rank: RankProcess, line: bytes) -> None:
        try:
            message = parse_rank_message(line.decode())
        # A rank's library may write to the pipe. A bad line must not end the agent.
        except (ValueError, TypeError, KeyError) as error:
            number = rank.placement.rank
            log(AgentEvent.HEARTBEAT_REFUSED, rank=number, reason=str(error)[:256])
            return
        match message:
            case Heartbeat():
                self._on_heartbeat(rank, message)
            case Quiesced():
                self._on_quiesced(rank, message)
            case SnapshotTaken():
                self._on_snapshot(rank, _snapshot_info(message, rank.placement))
            case NoticeSaved():
                self._listener.on_saved(message)
            case PromptsContinued():
                self._status.answers = message.answers
            case CollectivesReported():
                if (message.generation, message.attempt) == rank.placement.membership:
                    rank.progress = message.progress
            case RankError():
                rank.error = message.error
            case RankReturned():
                self._on_done(rank)

    def _on_heartbeat(self, rank: RankProcess, heartbeat: Heartbeat) -> None:
        if (heartbeat.generation, heartbeat.attempt) != rank.placement.membership:
            return  # written before it was resumed
        # A rank that moves has no use for its progress in collectives.
        rank.progress = None
        self._status.record_heartbeat(heartbeat)
        self._listener.on_heartbeat(heartbeat)
        if heartbeat.phase is Phase.DONE:
            self._on_done(rank)

    def _on_snapshot(self, rank: RankProcess, snapshot: SnapshotInfo) -> None:
        """Store a snapshot. Its rank is notified of a peer's copy, which paces its snapshots."""
        busy = time.process_time()

        def confirm(seconds: float) -> None:
            # All ranks of the pod take snapshots at the same steps, so each gets an equal share.
            share = (time.process_time() - busy) / len(self._ranks)
            rank.send_order(
                Replicated(step=snapshot.step, seconds=seconds, processor_seconds=share)
            )

        self._listener.on_snapshot(snapshot, on_copied=confirm)

    def _on_done(self, rank: RankProcess) -> None:
        if rank.done:
            return
        rank.done = True
        self.changes.notify()
        # A library's teardown may hang. The work is done, so the process is killed then.
        asyncio.get_running_loop().call_later(
            self._settings.teardown_seconds, self._end_teardown, rank
        )

    def _end_teardown(self, rank: RankProcess) -> None:
        """Kill a rank that is done but does not end, without waiting for its end."""
        if rank.alive:
            seconds = self._settings.teardown_seconds
            log(AgentEvent.RANK_LINGERS, rank=rank.placement.rank, seconds=seconds)
            self._zygote.signal(rank.child, signal.SIGKILL)

    def _on_quiesced(self, rank: RankProcess, quiesced: Quiesced) -> None:
        rank.quiesced = (quiesced.generation, quiesced.attempt)
        number = rank.placement.rank
        log(AgentEvent.RANK_PARKED, rank=number, step=quiesced.step, reason=quiesced.reason)
        rank.changed.notify()
        self.changes.notify()
        # After an interrupt of the agent this fault is a consequence, and is ignored as such.
        if rank.is_quiesced:
            self._listener.on_fault(self._faults.peers_lost(rank, quiesced))

    def _on_exit(self, rank: RankProcess) -> None:
        number, code = rank.placement.rank, rank.child.exited.result()
        log(AgentEvent.RANK_EXITED, rank=number, code=code, reason=describe_exit_code(code))
        if rank.placement.membership == (self._status.generation, self._status.attempt):
            self._status.ranks_up[number] = False
        # Its last messages and words come before the verdict on its exit.
        rank.message_reader.drain()
        rank.output_reader.finish()
        rank.close_control()
        # Later: a child of the rank may still hold the pipe and write its last lines.
        asyncio.get_running_loop().call_later(DRAIN_SECONDS, rank.close)
        # The same code without a request to leave is an ordinary failure.
        rank.preempted = code == ExitCode.PREEMPTED and self._leave_requested
        rank.changed.notify()
        self.changes.notify()
        # All ranks end with the zygote: then its failure is the cause, not theirs.
        if not (rank.ended_by_agent or rank.succeeded or self._zygote.gone.done()):
            self._listener.on_fault(self._faults.process_ended(rank, code))

    def _view(self, rank: RankProcess, *, now: float) -> RankView:
        received = self._status.heartbeats.get(rank.placement.rank)
        newest = None if received is None else received.heartbeat
        silent = now - (rank.entered_at if received is None else received.at)
        patience = patience_seconds(newest, step_seconds=self._status.step_seconds)
        # Ask early, so that the answer is there when the silence becomes unusual.
        if silent > ASKED_AFTER * patience and not rank.done:
            rank.ask_for_progress(now=now)
        return RankView(
            rank=rank.placement.rank,
            position=BEFORE_FIRST_HEARTBEAT if newest is None else newest.position,
            silent_seconds=silent,
            patience_seconds=patience,
            evidence=rank.read_evidence(now=now),
            done=rank.done,
            progress=rank.progress,
            pause=self._status.work_of(rank.placement.rank).pause(now=now),
            compute=None if newest is None else _compute_of(newest),
        )


def _snapshot_info(taken: SnapshotTaken, placement: Placement) -> SnapshotInfo:
    return SnapshotInfo(
        rank=placement.rank,
        step=taken.step,
        generation=taken.generation,
        attempt=taken.attempt,
        world_size=placement.world_size,
        bytes=taken.bytes,
        sha256=taken.sha256,
    )


def _compute_of(heartbeat: Heartbeat) -> StepCompute | None:
    parts = heartbeat.step_parts or {}
    seconds = parts.get(Phase.FORWARD, 0.0) + parts.get(Phase.BACKWARD, 0.0)
    # Heartbeats between two measurements repeat the last one.
    if heartbeat.measured_step is None or seconds <= 0:
        return None
    return StepCompute(step=heartbeat.measured_step, seconds=seconds, stage=heartbeat.stage)


def _ended_with_zero(rank: RankProcess) -> bool:
    return not rank.alive and rank.child.exited.result() == ExitCode.OK
