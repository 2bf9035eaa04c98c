"""The ranks of this pod: forked, brought to rest, resumed, and ended together.

A process outlives the attempt it was forked for: when the gang breaks it parks, and the next
attempt resumes it under a new placement. Whoever does not park in time is killed and forked anew.

A rank that has said it is done has succeeded, however its process ends: its last checkpoint is
committed by then, and what can still go wrong is the teardown of a library. It gets
`teardown_seconds` for that and is killed after. An exit code of 0 alone is no success: any library
can end a process so.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any, Protocol

from drumline_trainer.agent.base.change_notifier import ChangeNotifier
from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.base.outcome import describe_exit_code
from drumline_trainer.agent.leader.hang_detection import patience_seconds
from drumline_trainer.agent.processes.rank_faults import RankFaults
from drumline_trainer.agent.processes.rank_main import RETURNED
from drumline_trainer.agent.processes.rank_process import RankProcess, fork_rank
from drumline_trainer.agent.processes.zygote_client import KILL_SECONDS
from drumline_trainer.agent.protocol.member_reports import RankView
from drumline_trainer.agent.snapshots.catalog import SnapshotInfo
from drumline_trainer.contract import ExitCode
from drumline_trainer.rank_protocol.heartbeat import (
    Heartbeat,
    NoticeSaved,
    Phase,
    Quiesced,
    RankError,
    SnapshotTaken,
    parse_rank_message,
)
from drumline_trainer.rank_protocol.orders import Interrupt, Resume, SaveNotice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drumline_trainer.agent.base.settings import AgentSettings
    from drumline_trainer.agent.processes.zygote_client import ZygoteClient
    from drumline_trainer.agent.protocol.member_reports import Fault
    from drumline_trainer.agent.state.rank_status import RankStatusStore
    from drumline_trainer.rank_protocol.orders import RankOrder
    from drumline_trainer.rank_protocol.placement import Placement

LAST_WORDS_SECONDS = 0.1
"""For a hung rank to write its flight record (`profiling.flight_recorder`) after SIGUSR1."""
QUIESCE_SECONDS = 5.0
"""How long a rank may take to leave its collectives once it was told to; or two of its steps. It
takes a tenth of a second where cores are free: who is killed for being late loses its process."""
DRAIN_SECONDS = 2.0
"""How long the pipes of ended ranks are read on: a stray process may hold them open."""
BEFORE_FIRST_HEARTBEAT = (-1, 0, -1)
"""Position of a rank that has said nothing yet."""


class RankListener(Protocol):
    """Who hears what happens to the ranks."""

    def on_fault(self, fault: Fault) -> None:
        """An attempt is broken."""

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A rank gave a sign of life."""

    def on_snapshot(self, process: RankProcess, shard: SnapshotInfo) -> None:
        """A rank has written a snapshot."""

    def on_saved(self, saved: NoticeSaved) -> None:
        """A rank has answered a notice."""


class LocalRanks:
    """Processes by local rank."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        zygote: ZygoteClient,
        board: RankStatusStore,
        listener: RankListener,
    ) -> None:
        self._settings = settings
        self._zygote = zygote
        self._board = board
        self._listener = listener
        self._ranks: dict[int, RankProcess] = {}
        self._told_to_leave = False
        self._faults = RankFaults(board=board, index=settings.index)
        self.changes = ChangeNotifier()
        """Rung when a rank is done, has parked or has ended."""

    @property
    def all_preempted(self) -> bool:
        """Every rank has left on request."""
        ranks = self._ranks.values()
        return all(rank.succeeded for rank in ranks) and any(rank.preempted for rank in ranks)

    def views(self) -> tuple[RankView, ...]:
        """Every rank that is in the present attempt, as it looks now."""
        present = (self._board.generation, self._board.attempt)
        return tuple(
            self._view(rank, now=time.monotonic())
            for rank in self._ranks.values()
            if rank.placement.membership == present
        )

    def send_to_all(self, order: RankOrder) -> None:
        """Write an order to every rank."""
        self._told_to_leave |= isinstance(order, SaveNotice) and order.leave
        for rank in self._ranks.values():
            rank.send_order(order)

    def kill(self, numbers: Iterable[int], *, reason: str) -> None:
        """End ranks that keep the others waiting, a moment after they were asked where they are."""
        wanted = set(numbers)
        loop = asyncio.get_running_loop()
        for rank in self._ranks.values():
            if rank.placement.rank in wanted and rank.alive and not rank.done:
                log(AgentEvent.RANK_KILLED, rank=rank.placement.rank, reason=reason)
                rank.kill_reason = reason
                self._zygote.signal(rank.child, signal.SIGUSR1)
                loop.call_later(LAST_WORDS_SECONDS, self._zygote.signal, rank.child, signal.SIGKILL)

    async def quiesce(self) -> None:
        """Bring every rank to rest: parked, or ended."""
        async with asyncio.TaskGroup() as group:
            for rank in self._ranks.values():
                group.create_task(self._rest(rank))

    async def start_attempt(self, placements: Sequence[Placement]) -> None:
        """Resume the ranks that rest and fork the others, one for each placement."""
        first = placements[0]
        self._board.begin_attempt(
            generation=first.generation,
            attempt=first.attempt,
            ranks=range(first.rank, first.rank + len(placements)),
        )
        self._told_to_leave = False
        for local_rank in [number for number in self._ranks if number >= len(placements)]:
            await self._retire(self._ranks.pop(local_rank))
        resumed = [one.rank for one in placements if self._resume(one)]
        for placement in placements:
            if placement.rank not in resumed:
                await self._fork(placement)
        log(
            AgentEvent.RANKS_STARTED,
            generation=first.generation,
            attempt=first.attempt,
            pids={one.placement.rank: await one.child.pid for one in self._ranks.values()},
            resumed=resumed,
            world_size=first.world_size,
            restore_snapshot=first.restore_snapshot,
        )

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End every process and print what is left of its output.

        With a grace the ranks get SIGTERM first. Returns whether all of them had done their work.
        """
        ranks = list(self._ranks.values())
        if grace_seconds > 0:
            for rank in ranks:
                self._zygote.signal(rank.child, signal.SIGTERM)
            await _wait([rank.child.exited for rank in ranks], seconds=grace_seconds)
        well = [rank.done or _ended_with_zero(rank) for rank in ranks]
        async with asyncio.TaskGroup() as group:
            for rank in ranks:
                group.create_task(self._retire(rank))
        await _wait([rank.output_reader.ended for rank in ranks], seconds=DRAIN_SECONDS)
        for rank in ranks:
            rank.close()
        return bool(ranks) and all(well)

    async def wait_for_teardown(self) -> None:
        """Wait until the ranks that are done have ended, at most `teardown_seconds`."""
        exits = [rank.child.exited for rank in self._ranks.values()]
        await _wait(exits, seconds=self._settings.teardown_seconds)

    async def _rest(self, rank: RankProcess) -> None:
        if rank.is_quiesced:
            return
        if rank.alive and not rank.done:
            number, attempt = rank.placement.membership
            if rank.send_order(Interrupt(generation=number, attempt=attempt)):
                await self._parked_or_ended(rank)
        if not rank.is_quiesced:
            await self._retire(rank)

    async def _parked_or_ended(self, rank: RankProcess) -> None:
        try:
            async with asyncio.timeout(max(QUIESCE_SECONDS, 2 * (self._board.step_seconds or 0.0))):
                await rank.changed.wait_for(lambda: rank.is_quiesced or not rank.alive or None)
        except TimeoutError:
            log(AgentEvent.RANK_LINGERS, rank=rank.placement.rank, seconds=QUIESCE_SECONDS)

    async def _retire(self, rank: RankProcess) -> None:
        """End a process; that it ends means nothing from now on."""
        rank.ended_by_agent = True
        self._zygote.signal(rank.child, signal.SIGKILL)
        await _wait([rank.child.exited], seconds=KILL_SECONDS)

    def _resume(self, placement: Placement) -> bool:
        rank = self._ranks.get(placement.local_rank)
        if rank is None or not rank.is_quiesced or not rank.send_order(Resume(placement=placement)):
            return False
        rank.resume(placement)
        return True

    async def _fork(self, placement: Placement) -> None:
        former = self._ranks.get(placement.local_rank)
        if former is not None:
            await self._retire(former)
        self._ranks[placement.local_rank] = await fork_rank(
            placement, zygote=self._zygote, on_line=self._on_line, on_exit=self._on_exit
        )

    def _on_line(self, rank: RankProcess, line: bytes) -> None:
        if line.decode(errors="replace") == RETURNED:
            self._on_done(rank)
            return
        try:
            word = parse_rank_message(line.decode())
        except (ValueError, TypeError, KeyError) as error:
            number = rank.placement.rank
            log(AgentEvent.HEARTBEAT_REFUSED, rank=number, reason=str(error)[:256])
            return
        match word:
            case Heartbeat():
                self._on_heartbeat(rank, word)
            case Quiesced():
                self._on_parked(rank, word)
            case SnapshotTaken():
                self._listener.on_snapshot(rank, _shard(word, placement=rank.placement))
            case NoticeSaved():
                self._listener.on_saved(word)
            case RankError():
                rank.error = word.error

    def _on_heartbeat(self, rank: RankProcess, heartbeat: Heartbeat) -> None:
        if (heartbeat.generation, heartbeat.attempt) != rank.placement.membership:
            return  # written before it was resumed
        self._board.record_heartbeat(heartbeat)
        self._listener.on_heartbeat(heartbeat)
        if heartbeat.phase is Phase.DONE:
            self._on_done(rank)

    def _on_done(self, rank: RankProcess) -> None:
        if rank.done:
            return
        rank.done = True
        self.changes.notify()
        asyncio.get_running_loop().call_later(
            self._settings.teardown_seconds, self._end_teardown, rank
        )

    def _end_teardown(self, rank: RankProcess) -> None:
        """Kill a rank that is done but does not end; not even the kill is waited for."""
        if rank.alive:
            seconds = self._settings.teardown_seconds
            log(AgentEvent.RANK_LINGERS, rank=rank.placement.rank, seconds=seconds)
            self._zygote.signal(rank.child, signal.SIGKILL)

    def _on_parked(self, rank: RankProcess, parked: Quiesced) -> None:
        rank.quiesced = (parked.generation, parked.attempt)
        number = rank.placement.rank
        log(AgentEvent.RANK_PARKED, rank=number, step=parked.step, reason=parked.reason)
        rank.changed.notify()
        self.changes.notify()
        if rank.is_quiesced:
            self._listener.on_fault(self._faults.peers_lost(rank, parked))

    def _on_exit(self, rank: RankProcess) -> None:
        number, code = rank.placement.rank, rank.child.exited.result()
        log(AgentEvent.RANK_EXITED, rank=number, code=code, reason=describe_exit_code(code))
        if rank.placement.membership == (self._board.generation, self._board.attempt):
            self._board.ranks_up[number] = False
        rank.message_reader.drain()  # its last words, before it is judged
        rank.close_control()
        asyncio.get_running_loop().call_later(DRAIN_SECONDS, rank.close)
        rank.preempted = code == ExitCode.PREEMPTED and self._told_to_leave
        rank.changed.notify()
        self.changes.notify()
        # With the zygote all its children end: it is to blame, not they.
        if not (rank.ended_by_agent or rank.succeeded or self._zygote.gone.done()):
            self._listener.on_fault(self._faults.process_ended(rank, code))

    def _view(self, rank: RankProcess, *, now: float) -> RankView:
        heard = self._board.heartbeats.get(rank.placement.rank)
        newest = None if heard is None else heard.heartbeat
        return RankView(
            rank=rank.placement.rank,
            position=BEFORE_FIRST_HEARTBEAT if newest is None else newest.position,
            silent_seconds=now - (rank.entered_at if heard is None else heard.at),
            patience_seconds=patience_seconds(newest, step_seconds=self._board.step_seconds),
            evidence=rank.read_evidence(now=now),
            done=rank.done,
        )


def _shard(word: SnapshotTaken, *, placement: Placement) -> SnapshotInfo:
    return SnapshotInfo(
        rank=placement.rank,
        step=word.step,
        generation=word.generation,
        attempt=word.attempt,
        world_size=placement.world_size,
        bytes=word.bytes,
        sha256=word.sha256,
    )


def _ended_with_zero(rank: RankProcess) -> bool:
    return not rank.alive and rank.child.exited.result() == ExitCode.OK


async def _wait(futures: Sequence[asyncio.Future[Any]], *, seconds: float) -> None:
    pending = [future for future in futures if not future.done()]
    if pending:
        await asyncio.wait(pending, timeout=seconds)
