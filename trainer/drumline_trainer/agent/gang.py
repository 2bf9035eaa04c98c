"""The ranks of this pod in one attempt: forked, watched, and ended together.

Everything that can happen to an attempt is a value in one inbox; `watch` takes them one by one
until there is a verdict. The store, where this pod serves it, is a process beside the ranks: it
ends only with `end`, after everyone who needs it.

A rank that has said it is done has succeeded, however its process ends: its last checkpoint is
committed by then, and what can still go wrong is the teardown of a library. It gets
`teardown_seconds` for that and is killed after; its peers, whose own teardown may fail by that,
are done too.
"""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline_trainer.agent.events import Event, log
from drumline_trainer.agent.output import LineReader, PrefixedOutput, open_pipe
from drumline_trainer.agent.rank_main import rank_order, store_order
from drumline_trainer.agent.verdict import (
    Failed,
    Succeeded,
    Superseded,
    Suspected,
    Terminated,
    describe,
    judge,
    peer_lost,
)
from drumline_trainer.agent.zygote_client import KILL_SECONDS, Child
from drumline_trainer.contract import STORE_PORTS, ExitCode
from drumline_trainer.heartbeat import Heartbeat, Phase
from drumline_trainer.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumline_trainer.agent.board import Board
    from drumline_trainer.agent.settings import AgentSettings
    from drumline_trainer.agent.zygote_client import ZygoteClient
    from drumline_trainer.contract import GenerationRecord

SETTLE_SECONDS = 3.0
"""How long after a PEER_LOST a better explanation is waited for."""
DRAIN_SECONDS = 2.0
"""How long the pipes of ended ranks are read on: a stray process may hold them open."""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank of ours ended."""

    rank: int
    code: int


@dataclass(frozen=True, slots=True)
class MembersLost:
    """The gang is broken elsewhere: a member failed, or the store went away."""

    reason: str


Happening = RankExited | MembersLost | Failed | Terminated | Superseded
Verdict = Succeeded | Failed | Terminated | Superseded


@dataclass(slots=True, kw_only=True)
class _Rank:
    child: Child
    output: PrefixedOutput
    said: LineReader
    error: str = ""
    """What the rank's own supervisor said it died of."""
    done: bool = False
    """It has said that it is through."""

    @property
    def succeeded(self) -> bool:
        """Whether the process has ended, and well."""
        return self.child.exited.done() and (self.done or self.child.exited.result() == 0)


class LocalGang:
    """One attempt in this pod. Call `start`, then `watch`, then `end`."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        record: GenerationRecord,
        attempt: int,
        zygote: ZygoteClient,
        board: Board,
    ) -> None:
        self._settings = settings
        self._record = record
        self._attempt = attempt
        self._zygote = zygote
        self._board = board
        self._ranks: dict[int, _Rank] = {}
        self._store: Child | None = None
        self._readers: list[LineReader] = []
        self.inbox: asyncio.Queue[Happening] = asyncio.Queue()

    @property
    def serves_store(self) -> bool:
        """Whether this pod has the gang's store."""
        return self._record.store_member.index == self._settings.index

    async def start(self) -> None:
        """Fork the store, if it is ours, and the ranks."""
        # Heard before the ranks that die with it: their exits would look like the cause.
        self._zygote.gone.add_done_callback(lambda gone: self.inbox.put_nowait(gone.result()))
        placements = self._placements()
        self._board.begin(
            generation=self._record.generation,
            attempt=self._attempt,
            ranks=range(placements[0].rank, placements[-1].rank + 1),
        )
        if self.serves_store:
            await self._start_store()
        for placement in placements:
            await self._start_rank(placement)
        log(
            Event.RANKS_STARTED,
            generation=self._record.generation,
            attempt=self._attempt,
            pids={number: await rank.child.pid for number, rank in self._ranks.items()},
            world_size=self._record.world_size,
        )

    async def watch(self) -> Verdict:
        """Wait until it is clear how the attempt ends."""
        exits: dict[int, int] = {}
        while True:
            match await self.inbox.get():
                case RankExited(rank, code):
                    exits[rank] = code
                    verdict = judge(exits, ranks=len(self._ranks))
                    if isinstance(verdict, Succeeded | Failed):
                        return verdict
                    if isinstance(verdict, Suspected):
                        self._suspect(peer_lost("lost its peers", rank=rank))
                case MembersLost(reason):
                    self._suspect(peer_lost(reason))
                case (Failed() | Terminated() | Superseded()) as verdict:
                    return verdict

    def _suspect(self, failed: Failed) -> None:
        """Believe this, unless something better is heard within SETTLE_SECONDS."""
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self.inbox.put_nowait, failed)

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End every process of the attempt and print what is left of its output.

        With a grace the ranks get SIGTERM first. Returns whether all ranks had succeeded.
        """
        if self._store is not None:
            self._store.exited.remove_done_callback(self._on_store_exit)
        ranks = [rank.child for rank in self._ranks.values()]
        if grace_seconds > 0:
            for child in ranks:
                self._zygote.signal(child, signal.SIGTERM)
            await _wait([child.exited for child in ranks], seconds=grace_seconds)
        everyone = ranks if self._store is None else [*ranks, self._store]
        for child in everyone:
            self._zygote.signal(child, signal.SIGKILL)
        await _wait([child.exited for child in everyone], seconds=KILL_SECONDS)
        await _wait([reader.ended for reader in self._readers], seconds=DRAIN_SECONDS)
        for reader in self._readers:
            reader.close()
        return all(rank.succeeded for rank in self._ranks.values())

    def explain(self, verdict: Verdict) -> str:
        """One line: which rank, what it said last; empty on success. Complete after `end`."""
        match verdict:
            case Failed(reason=reason, rank=int(number)):
                rank = self._ranks[number]
                words = rank.error or rank.output.last_line
                return f"rank {number}: {words} [{reason}]" if words else f"rank {number}: {reason}"
            case Failed(reason=reason):
                return reason
            case Terminated():
                return "terminated before its ranks had finished"
            case _:
                return ""

    def _placements(self) -> Sequence[Placement]:
        record, settings = self._record, self._settings
        here = next(member for member in record.members if member.index == settings.index)
        return [
            Placement(
                rank=record.first_rank(settings.index) + local_rank,
                world_size=record.world_size,
                local_rank=local_rank,
                local_world_size=here.ranks,
                store_host=record.store_member.address,
                store_port=self._store_port,
                owner=record.job_uid,
                generation=record.generation,
                attempt=self._attempt,
                checkpoint_folder=settings.checkpoint_folder,
                acknowledged_step=record.restore_step,
                acknowledged_digest=record.restore_digest,
                address=here.address,
            )
            for local_rank in range(here.ranks)
        ]

    @property
    def _store_port(self) -> int:
        return self._settings.store_port + self._attempt % STORE_PORTS

    def _name(self, what: str) -> str:
        return f"{self._record.generation}.{self._attempt}/{what}"

    async def _start_store(self) -> None:
        output = PrefixedOutput("store")
        reader, descriptor = await open_pipe(output.line)
        self._readers.append(reader)
        order = store_order(self._record.store_member.address, port=self._store_port)
        self._store = self._zygote.fork(self._name("store"), order, descriptors=[descriptor])
        self._store.exited.add_done_callback(self._on_store_exit)

    async def _start_rank(self, placement: Placement) -> None:
        number = placement.rank
        output = PrefixedOutput(f"rank {number}")
        printed, output_end = await open_pipe(output.line)
        said, heartbeat_end = await open_pipe(lambda line: self._on_heartbeat(number, line))
        self._readers += [printed, said]
        child = self._zygote.fork(
            self._name(f"rank-{number}"),
            rank_order(placement),
            descriptors=[output_end, heartbeat_end],
        )
        self._ranks[number] = _Rank(child=child, output=output, said=said)
        child.exited.add_done_callback(lambda exited: self._on_rank_exit(number, exited.result()))

    def _on_heartbeat(self, rank: int, line: bytes) -> None:
        try:
            words = json.loads(line)
            if "error" in words:
                self._ranks[rank].error = str(words["error"])
                return
            heartbeat = Heartbeat.from_json(line.decode())
        except (ValueError, TypeError, KeyError) as error:
            log(Event.HEARTBEAT_REFUSED, rank=rank, reason=str(error)[:256])
            return
        self._board.beat(heartbeat)
        if heartbeat.phase is Phase.DONE and not self._ranks[rank].done:
            self._ranks[rank].done = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.teardown_seconds, self._end_teardown, rank)

    def _end_teardown(self, rank: int) -> None:
        """Kill a rank that is done but does not end; not even the kill is waited for."""
        child = self._ranks[rank].child
        if not child.exited.done():
            log(Event.RANK_LINGERS, rank=rank, seconds=self._settings.teardown_seconds)
            self._zygote.signal(child, signal.SIGKILL)
            self.inbox.put_nowait(RankExited(rank, ExitCode.OK))

    def _on_rank_exit(self, rank: int, code: int) -> None:
        log(Event.RANK_EXITED, rank=rank, code=code, reason=describe(code))
        self._board.ranks_up[rank] = False
        self._ranks[rank].said.drain()  # its last words, before it is judged
        self.inbox.put_nowait(RankExited(rank, ExitCode.OK if self._ranks[rank].done else code))

    def _on_store_exit(self, exited: asyncio.Future[int]) -> None:
        log(Event.STORE_EXITED, code=exited.result())
        self.inbox.put_nowait(MembersLost(f"the store ended: {describe(exited.result())}"))


async def _wait(futures: Sequence[asyncio.Future[Any]], *, seconds: float) -> None:
    pending = [future for future in futures if not future.done()]
    if pending:
        await asyncio.wait(pending, timeout=seconds)
