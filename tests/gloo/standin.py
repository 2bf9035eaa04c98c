"""A stand-in for the agents of a job: forks ranks, hears what they say, gives them orders.

It speaks the real protocol over real pipes (`agent.rank_protocol.heartbeat`,
`agent.rank_protocol.orders`) and does what agents do after a fault in the simplest way: once every
survivor has parked, or was killed because it did not in time, the dead ranks are forked anew and
all join the next attempt, at a step that every rank has a snapshot of.

    with StandIn(gangs, config, world_size=3, folder=tmp_path) as gang:
        gang.start(faults=[Fault(rank=1, step=5, phase=Phase.BACKWARD, kind="SIGKILL")])
        gang.recover()      # waits for the fault
        gang.finish()       # waits for the end; raises unless all exit codes are 0
"""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence, Set  # noqa: PYI025 - as the annotation of a parameter
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from drumline_agent.rank_protocol.control import Control
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import Quiesced, RankMessage, parse_rank_message
from drumline_agent.rank_protocol.orders import Interrupt, RankOrder, Resume
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.recovery.rendezvous_store import listen, store_on
from tests.gloo.gang import GangStarter
from tests.gloo.nccl.device import DEVICE

DEVICE_FAULTS = {
    "stands still": DEVICE.call_nothing,
    "device hangs": DEVICE.hang,
    "links are lost": DEVICE.lose_links,
}
PARKING_SECONDS = 20.0
"""Far more than ranks need to leave an attempt, where many processes want each core too."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What befalls a rank when it says that it enters this phase after `step` finished steps."""

    rank: int
    step: int
    phase: Phase
    kind: str
    """The name of a signal, "exception", or on the stand-in for NCCL one of `DEVICE_FAULTS`."""
    attempt: int = 0

    def strike(self, placement: Placement, beat: Heartbeat) -> None:
        """Happen, if this is the rank and the moment."""
        if (beat.rank, beat.attempt, beat.step, beat.phase) != (
            self.rank,
            self.attempt,
            self.step,
            self.phase,
        ):
            return
        if self.kind == "exception":
            raise ValueError(f"rank {placement.rank} was told to fail")
        if self.kind in DEVICE_FAULTS:
            DEVICE_FAULTS[self.kind]()
            return
        signal.raise_signal(signal.Signals[self.kind])


def rank_of_agent(
    placement: Placement,
    *,
    config: TrainerConfig,
    words: Connection,
    orders: Connection,
    faults: Sequence[Fault],
    module: str,
) -> None:
    """A rank process with an agent, as `drumline_agent.processes.rank_main` makes it."""
    rank = __import__(module, fromlist=["run_rank"])

    def send(word: RankMessage) -> None:
        os.write(words.fileno(), word.to_json().encode() + b"\n")
        if isinstance(word, Heartbeat):
            for fault in faults:
                fault.strike(placement, word)

    try:
        rank.run_rank(
            config=config,
            placement=placement,
            heartbeat=send,
            control=Control(os.dup(orders.fileno())),
            write=lambda _: None,
        )
    except Exception as error:  # noqa: BLE001 - the process boundary
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(rank.exit_code_of(error))
    sys.stdout.flush()
    os._exit(0)  # as in a pod: no teardown of a library


@dataclass(kw_only=True)
class Rank:
    """One process and what it has said."""

    process: BaseProcess
    orders: Connection
    heard: queue.SimpleQueue[RankMessage | None] = field(default_factory=queue.SimpleQueue)
    said: list[RankMessage] = field(default_factory=list)
    """Everything taken from the queue so far."""

    def hear(
        self, wanted: Callable[[RankMessage], bool], *, until: float = math.inf
    ) -> RankMessage:
        """Wait for a word.

        Raises:
            EOFError: the process ended before it said so.
            queue.Empty: it has not by the monotonic clock's `until`.
        """
        while (word := self._next(until)) is not None:
            self.said.append(word)
            if wanted(word):
                return word
        self.heard.put(None)
        raise EOFError(f"ended without the word, exit code {self.process.exitcode}")

    def _next(self, until: float) -> RankMessage | None:
        if until == math.inf:
            return self.heard.get()
        return self.heard.get(timeout=max(0.0, until - time.monotonic()))

    def parks(self, attempt: int, *, until: float) -> bool:
        """Wait until it has left this attempt; one that has not in time is killed."""
        try:
            self.hear(
                lambda word: isinstance(word, Quiesced) and word.attempt == attempt, until=until
            )
        except (EOFError, queue.Empty):
            self.process.kill()
            self.process.join()
            return False
        return True

    def listened(self) -> list[RankMessage]:
        """Everything said up to the end of the process."""
        while (word := self.heard.get()) is not None:
            self.said.append(word)
        self.heard.put(None)
        return self.said

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()
        self.orders.close()

    def tell(self, order: RankOrder) -> None:
        """Give an order."""
        os.write(self.orders.fileno(), order.to_json().encode() + b"\n")


class StandIn:
    """The agents of one job on this machine."""

    def __init__(
        self,
        gangs: GangStarter,
        config: TrainerConfig,
        *,
        world_size: int,
        folder: Path | None,
        module: str = "drumline_trainer.rank",
        snapshots: bool = True,
    ) -> None:
        self._context = gangs.context
        self._config = config
        self._module = module
        self.folder = folder
        self._snapshots = folder / "snapshots" if folder is not None and snapshots else None
        self.world_size = world_size
        self.attempt = 0
        self.generation = 1
        self.ranks: dict[int, Rank] = {}
        self._store: object = None
        self._store_port = 0
        self.faults: Sequence[Fault] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks.values():
            rank.end()

    def start(self, faults: Sequence[Fault] = ()) -> None:
        """Fork all ranks of attempt 0."""
        self.faults = faults
        self._serve_store()
        for number in range(self.world_size):
            self.fork(number)

    @property
    def pids(self) -> dict[int, int | None]:
        """Process ids by rank."""
        return {number: rank.process.pid for number, rank in self.ranks.items()}

    def fork(self, number: int, *, restore: int | None = None) -> None:
        """Start a process for this rank of the present attempt."""
        self.ranks[number] = self.forked(self.placement(number, restore=restore))

    def forked(self, placement: Placement) -> Rank:
        """A process for a rank, of any attempt; it is nobody's to end."""
        heard, words = self._context.Pipe(duplex=False)
        orders, given = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=rank_of_agent,
            args=(placement,),
            kwargs={
                "config": self._config,
                "words": words,
                "orders": orders,
                "faults": self.faults,
                "module": self._module,
            },
        )
        process.start()
        words.close()
        orders.close()
        rank = Rank(process=process, orders=given)
        threading.Thread(target=_listen, args=(heard, rank.heard), daemon=True).start()
        return rank

    def placement(self, number: int, *, restore: int | None = None) -> Placement:
        """Of a rank in the present attempt."""
        return Placement(
            rank=number,
            world_size=self.world_size,
            local_rank=number,
            local_world_size=self.world_size,
            store_port=self._store_port,
            owner="job",
            generation=self.generation,
            attempt=self.attempt,
            checkpoint_folder=self.folder,
            snapshot_folder=self._snapshots,
            restore_snapshot=restore,
            address="127.0.0.1",
        )

    def park(self) -> set[int]:
        """Once a rank is dead, bring the others to rest; the dead ones."""
        wait([rank.process.sentinel for rank in self.ranks.values()])
        return self.interrupt()

    def interrupt(self) -> set[int]:
        """Have every rank leave this attempt; those dead then: who is late is killed."""
        for rank in self.ranks.values():
            with suppress(BrokenPipeError):
                rank.tell(Interrupt(generation=self.generation, attempt=self.attempt))
        give_up = time.monotonic() + PARKING_SECONDS
        return {n for n, r in self.ranks.items() if not r.parks(self.attempt, until=give_up)}

    def recover(self, *, restore: int | None = None, newest: bool = True) -> set[int]:
        """Once a rank is dead: park, fork the dead, resume the others. Returns the dead."""
        dead = self.park()
        self.resume(dead, restore=self.common_snapshot() if newest else restore)
        return dead

    def resume(
        self, dead: Set[int], *, restore: int | None, absent: Set[int] = frozenset()
    ) -> None:
        """Begin the next attempt, without those that are absent."""
        self.attempt += 1
        self._serve_store()
        for number in sorted(set(self.ranks) - absent):
            if number in dead:
                self.ranks[number].orders.close()
                self.fork(number, restore=restore)
            else:
                self.ranks[number].tell(Resume(placement=self.placement(number, restore=restore)))

    @property
    def snapshots(self) -> Path:
        """The memory of all pods; its own folder for each rank."""
        assert self._snapshots is not None
        return self._snapshots

    def common_snapshot(self) -> int | None:
        """The newest step that every rank has a snapshot of."""
        if self._snapshots is None:
            return None
        held = [
            {int(f.stem.removeprefix("step-")) for f in folder.glob("step-*.snapshot")}
            for folder in (self.snapshots / f"rank-{n:05d}" for n in range(self.world_size))
        ]
        return max(set.intersection(*held), default=None)

    def hear(self, wanted: Callable[[RankMessage], bool]) -> list[RankMessage]:
        """Wait until every rank has said such a word."""
        return [rank.hear(wanted) for rank in self.ranks.values()]

    def beats(self, *, attempt: int) -> list[Heartbeat]:
        """All heartbeats of an attempt that were heard so far."""
        return [
            word
            for rank in self.ranks.values()
            for word in rank.listened()
            if isinstance(word, Heartbeat) and word.attempt == attempt
        ]

    def finish(self) -> None:
        """Wait for all to end well."""
        assert self.exit_codes() == {0}

    def exit_codes(self) -> set[int | None]:
        """How the ranks ended, once all have."""
        for rank in self.ranks.values():
            rank.process.join()
        return {rank.process.exitcode for rank in self.ranks.values()}

    def _serve_store(self) -> None:
        listener = listen(0, address="127.0.0.1")
        self._store_port = listener.getsockname()[1]
        self._store = store_on(listener)


def first_step_after(beat_of: Sequence[RankMessage], *, attempt: int) -> float:
    """When a rank that has said these words had finished its first step of the attempt."""
    beats = [w for w in beat_of if isinstance(w, Heartbeat) and w.attempt == attempt]
    first = next(b for b in beats if b.phase is Phase.DATA)
    return next(b.time_seconds for b in beats if b.step > first.step)


def _listen(words: Connection, heard: queue.SimpleQueue[RankMessage | None]) -> None:
    with words, os.fdopen(os.dup(words.fileno()), encoding="utf-8") as lines:
        for line in lines:
            heard.put(parse_rank_message(line))
    heard.put(None)
