"""Ranks without an agent: several processes on this machine, or one that a launcher started.

The program of a rank is a function of its `Placement` that returns an exit code: training, or
measuring collectives.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from ipaddress import ip_address
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import cast
from uuid import uuid4

from drumline_agent.host import prctl
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import HUB_READERS, ExitCode
from drumline_contract.config import ConfigError
from drumline_trainer.launch.launchers import LOOPBACK, PORT_VARIABLE, LaunchedRank, RankProgram
from drumline_trainer.recovery.rendezvous_store import listen, store_on


def fork_ranks(work: RankProgram, *, ranks: int) -> int:
    """Fork `ranks` processes that meet on loopback, and wait for them.

    Returns:
        0, or the exit code of the rank that failed first; the others are ended.
    """
    os.environ[HUB_READERS] = uuid4().hex
    # Phase 1: port 0 lets the kernel choose a free port. It is bound before any rank needs it.
    listener = listen(0, address=LOOPBACK)
    placements = [
        Placement(
            rank=rank,
            world_size=ranks,
            local_rank=rank,
            local_world_size=ranks,
            store_port=listener.getsockname()[1],
            address=LOOPBACK,
        )
        for rank in range(ranks)
    ]
    fork = multiprocessing.get_context("fork")  # children share the imported torch
    processes = [
        fork.Process(target=_rank_process, args=(work, placement, os.getpid()))
        for placement in placements
    ]
    # Phase 2: start all ranks, then serve the store in this process, which outlives every rank.
    for process in processes:
        process.start()
    store = store_on(listener)  # after the forks: it starts threads
    # Phase 3: wait. The first failure ends the others, which would wait for the lost rank.
    try:
        return _first_failure(processes)
    finally:
        del store
        for process in processes:
            process.terminate()
        for (
            process
        ) in processes:  # after all were terminated: a rank that outlives a peer logs errors
            process.join()


def run_launched_rank(work: RankProgram, *, launched: LaunchedRank) -> int:
    """Run as the rank that a launcher started; rank 0 serves the store unless the launcher does.

    Raises:
        ConfigError: rank 0 cannot listen on the address that the others connect to.
    """
    # The store must listen before `work` joins. On other ranks it stays None.
    store = None
    if launched.rank == 0 and not launched.store_served:
        store = store_on(_listen(launched))
    placement = Placement(
        rank=launched.rank,
        world_size=launched.world_size,
        local_rank=launched.local_rank,
        local_world_size=launched.local_world_size,
        store_host=launched.address,
        store_port=launched.port,
        attempt=launched.attempt,
        # An empty address leaves the choice to `join`, which takes one that other nodes reach.
        address=LOOPBACK if launched.single_node else "",
    )
    code = work(placement)
    del store
    return code


def _listen(launched: LaunchedRank) -> socket.socket:
    address, port = launched.address, launched.port
    try:
        # All interfaces are avoided if possible: the store has no authentication.
        if not launched.single_node:
            resolved = str(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][4][0])
            # Debian's /etc/hosts maps the host's own name to loopback, which others cannot reach
            loopback = ip_address(resolved).is_loopback
            address = "0.0.0.0" if loopback else resolved  # noqa: S104 - the ranks are remote
        return listen(port, address=address)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # Python adds the address
        raise ConfigError(
            f"rank 0 cannot serve the store at {launched.address}:{port}: {why};"
            f" MASTER_ADDR must name its host, and {PORT_VARIABLE} chooses another port"
        ) from error


def _rank_process(work: RankProgram, placement: Placement, launcher: int) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the launcher too, which terminates the ranks
    # A killed launcher cannot clean up. The kernel then kills its ranks.
    prctl.die_with_parent(launcher)
    sys.exit(work(placement))


def _first_failure(processes: list[ForkProcess]) -> int:
    """Wait until all have succeeded or one has failed. Returns its exit code."""
    running = {process.sentinel: process for process in processes}
    while running:
        # `wait` returns every process that ended. The first one with an error decides.
        for sentinel in wait(list(running)):
            process = running.pop(cast("int", sentinel))  # a sentinel is its descriptor
            process.join()
            if process.exitcode:
                # A negative code is a signal. The shell of the user gets a code of the contract.
                return process.exitcode if process.exitcode > 0 else ExitCode.APPLICATION
    return ExitCode.OK
