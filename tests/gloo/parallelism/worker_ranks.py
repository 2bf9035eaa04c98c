"""What ranks do in the tests of parameter servers and local SGD: run after run, one gang."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import RankMessage
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.rank import run_rank
from drumline_trainer.recovery.abort import leave_membership
from tests.gloo.jobs import CPU


class _EnoughError(Exception):
    """The checkpoint that was asked for is committed."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training in a folder of its own."""

    config: TrainerConfig
    folder: Path
    until: int | None = None
    """End after this checkpoint as if killed."""
    hold: tuple[int, int] | None = None
    """The last rank stands still when it has finished so many steps, and the first says when it
    has finished so many."""


def work_through(placement: Placement, pipe: Connection, runs: list[Run]) -> None:
    """Send "done" after each; a held run says "held" and "ahead", and goes on when told to.

    A run that came to its end says which of its threads did not.
    """
    for attempt, run in enumerate(runs):
        listener = _Listener(placement, pipe, run)
        folders = {"checkpoint_folder": run.folder, "snapshot_folder": run.folder / "memory"}
        said = "done"
        with suppress(_EnoughError):
            run_rank(
                config=run.config,
                placement=replace(placement, generation=0, attempt=attempt, **folders),
                heartbeat=listener,
                write=lambda _: None,
            )
            serving = [t.name for t in threading.enumerate() if t.name.startswith("server of")]
            said = f"done, but for {serving}" if serving else "done"
        leave_membership(CPU)
        pipe.send(said)


class _Listener:
    def __init__(self, placement: Placement, pipe: Connection, run: Run) -> None:
        self.rank, self.last = placement.rank, placement.rank == placement.world_size - 1
        self.pipe, self.run = pipe, run
        self.said = False

    def __call__(self, word: RankMessage) -> None:
        if self.run.until is not None and getattr(word, "checkpoint_step", None) == self.run.until:
            raise _EnoughError
        if self.run.hold is None or self.said or not isinstance(word, Heartbeat):
            return
        held, ahead = self.run.hold
        if self.last and (word.step, word.phase) == (held, Phase.FORWARD):
            self.said = True
            self.pipe.send("held")
            self.pipe.recv()
        if self.rank == 0 and (word.step, word.phase) == (ahead, Phase.OPTIMIZER):
            self.said = True
            self.pipe.send("ahead")
