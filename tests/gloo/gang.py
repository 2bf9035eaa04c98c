"""Several rank processes on this machine for one test.

Ranks are forked from one server process that has imported torch, so a gang of four starts in a
fraction of a second. What a rank does is a function of `tests.gloo.jobs` or of a test module; it
gets its `Placement` and a pipe to the test.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.recovery.rendezvous_store import listen, store_on

REPOSITORY = Path(__file__).parents[2]
PRELOADED = (
    "pytest",
    "tests.gloo.jobs",
    "drumline_agent.__main__",
    "drumline_trainer.parallelism.data_parallel.fsdp",
    "drumline_trainer.parallelism.pipeline_parallel.pipeline",
    "torch._dynamo",
)
"""With pytest: a rank whose job is in a test module imports that, and would import it each time."""


def fork_server(*more: str) -> ForkServerContext:
    """Processes forked from one that has imported all of this; it is one for a session."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *more])
    # the server finds our packages by the environment alone, and must have one thread only
    paths = [REPOSITORY, REPOSITORY / "operator", REPOSITORY / "trainer"]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    return context


@dataclass(kw_only=True)
class Gang:
    """Live rank processes."""

    processes: list[BaseProcess]
    pipes: list[Connection]
    store: object = field(repr=False)

    def results(self) -> list[Any]:
        """What every rank sent; EOFError where one died before it did."""
        return [pipe.recv() for pipe in self.pipes]

    def exit_codes(self) -> list[int | None]:
        """Of every rank, once all are gone."""
        for process in self.processes:
            process.join()
        return [process.exitcode for process in self.processes]

    def kill(self, *ranks: int) -> None:
        """SIGKILL these ranks, or all."""
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].kill()
            self.processes[rank].join()


class GangStarter:
    """Starts gangs; one per test session, so that torch is imported once."""

    def __init__(self) -> None:
        self.context = fork_server()

    @contextmanager
    def gang(
        self,
        job: Callable[..., None],
        /,
        *arguments: Any,
        world_size: int,
        **placement: Any,
    ) -> Iterator[Gang]:
        """Ranks that run `job(placement, pipe, *arguments)`; killed when the block ends."""
        listener = listen(0, address="127.0.0.1")
        port = listener.getsockname()[1]
        store = store_on(listener)
        gang = Gang(processes=[], pipes=[], store=store)
        for rank in range(world_size):
            place = Placement(
                rank=rank,
                world_size=world_size,
                local_rank=rank,
                local_world_size=world_size,
                store_port=port,
                address="127.0.0.1",
                **placement,
            )
            ours, theirs = self.context.Pipe()
            process = self.context.Process(target=job, args=(place, theirs, *arguments))
            process.start()
            theirs.close()
            gang.processes.append(process)
            gang.pipes.append(ours)
        try:
            yield gang
        finally:
            gang.kill()
            for pipe in gang.pipes:
                pipe.close()

    def run(
        self, job: Callable[..., None], /, *arguments: Any, world_size: int, **placement: Any
    ) -> list[Any]:
        """Run `job` on every rank to its end; what the ranks sent, by rank."""
        with self.gang(job, *arguments, world_size=world_size, **placement) as gang:
            results = gang.results()
            assert gang.exit_codes() == [0] * world_size
            return results
