"""What ranks write down while they hang: asked by a signal, though they wait inside of Gloo."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.metrics.step_timer import observe, step_part
from drumline_trainer.profiling.flight_recorder import FlightRecorder, dump_on_signal, write_dump
from drumline_trainer.profiling.hang import read_dumps, summary
from drumline_trainer.recovery.rendezvous import join
from tests.gloo.gang import GangStarter

CULPRIT = 1


def hang(placement: Placement, pipe: Connection, folder: Path) -> None:
    """All but one rank begin a second all-reduce, which never ends."""
    join(placement, device=torch.device("cpu"))
    recorder = FlightRecorder()
    observe(recorder)

    def dump() -> None:
        write_dump(recorder.to_dict(placement), folder)
        pipe.send("written")

    assert dump_on_signal(dump)
    recorder.enter("backward")
    with step_part("all_reduce", "dp"):
        dist.all_reduce(torch.ones(4))
    if placement.rank == CULPRIT:
        pipe.send(os.getpid())
        while True:
            signal.pause()
    with step_part("all_reduce", "dp"):
        pipe.send(os.getpid())
        dist.all_reduce(torch.ones(4))


def test_ranks_that_hang_say_where_and_for_whom_they_wait(
    gangs: GangStarter, tmp_path: Path
) -> None:
    with gangs.gang(hang, tmp_path, world_size=3) as gang:
        for process in gang.results():
            os.kill(process, signal.SIGUSR1)
        assert gang.results() == ["written"] * 3
    lines = [line.rpartition(" for ")[0] for line in summary(read_dumps(tmp_path / "flight/0.0"))]
    assert lines[1:] == [
        "rank 1 in backward of step 0",
        "ranks 0 and 2 in all_reduce #2 of axis dp (step 0, backward)",
    ]
    assert summary(read_dumps(tmp_path / "flight/0.0"))[0] == "rank 1 keeps the others waiting"
