"""Ranks without an agent: several processes on this machine, or one that torchrun started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from drumline_trainer.agent import linux
from drumline_trainer.config import TrainerConfig
from drumline_trainer.contract import ExitCode
from drumline_trainer.placement import Placement
from drumline_trainer.rank import listen, rank_main, store_on


def launch(
    config: TrainerConfig,
    *,
    ranks: int,
    checkpoint_folder: Path | None,
    losses_file: Path | None,
) -> int:
    """Fork `ranks` processes that meet on loopback, and wait for them.

    Returns:
        0, or the exit code of the rank that failed first; the others are ended.
    """
    listener = listen(0, address="127.0.0.1")
    placements = [
        Placement(
            rank=rank,
            world_size=ranks,
            local_rank=rank,
            local_world_size=ranks,
            store_port=listener.getsockname()[1],
            checkpoint_folder=checkpoint_folder,
            address="127.0.0.1",
        )
        for rank in range(ranks)
    ]
    fork = multiprocessing.get_context("fork")  # children share the imported torch
    processes = [
        fork.Process(target=_rank_process, args=(config, placement, losses_file, os.getpid()))
        for placement in placements
    ]
    for process in processes:
        process.start()
    store = store_on(listener)  # after the forks: it starts threads
    try:
        return _first_failure(processes)
    finally:
        del store
        for process in processes:
            process.terminate()
        for process in processes:  # only now: who outlives a peer complains of it
            process.join()


def torchrun_rank(
    config: TrainerConfig, *, checkpoint_folder: Path | None, losses_file: Path | None
) -> int:
    """Be the rank that the environment of torchrun describes; its store is ours."""
    environment = os.environ
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = None
    if rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        store = store_on(listen(port, address=host))
    placement = Placement(
        rank=rank,
        world_size=world_size,
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        local_world_size=int(environment.get("LOCAL_WORLD_SIZE", "1")),
        store_host=host,
        store_port=port,
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        checkpoint_folder=checkpoint_folder,
    )
    code = rank_main(config, placement=placement, losses_file=losses_file)
    del store
    return code


def _rank_process(
    config: TrainerConfig, placement: Placement, losses_file: Path | None, launcher: int
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher too, which ends us
    linux.die_with_parent(launcher)
    sys.exit(rank_main(config, placement=placement, losses_file=losses_file))


def _first_failure(processes: list[ForkProcess]) -> int:
    """Wait until all ended well or one did not."""
    running = {process.sentinel: process for process in processes}
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)  # pyright: ignore[reportArgumentType]
            process.join()
            if process.exitcode:
                return process.exitcode if process.exitcode > 0 else ExitCode.APPLICATION
    return ExitCode.OK
