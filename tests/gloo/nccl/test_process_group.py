"""The stand-in does what ProcessGroupNCCL does where a peer does not come."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.recovery import rendezvous
from drumline_trainer.recovery.abort import abort_collectives
from tests.gloo.gang import Gang, GangStarter
from tests.gloo.nccl.process_group import (
    ASYNC_ERROR_HANDLING,
    NAME,
    ErrorHandling,
    NcclStandIn,
    register,
)

pytestmark = pytest.mark.extended(keep=4)

TIMEOUT = timedelta(minutes=10)
SHORT = timedelta(seconds=0.3)
"""Of the operation that is never completed."""
TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE,"
    " Timeout(ms)=300) ran for "
)


def join(placement: Placement, *, eager: bool = False) -> None:
    """The default group on the stand-in."""
    register()
    store = rendezvous._connect(placement, check=lambda: None)  # pyright: ignore[reportPrivateUsage] - as `join` does
    dist.init_process_group(
        NAME,
        store=store,
        rank=placement.rank,
        world_size=placement.world_size,
        timeout=TIMEOUT,
        device_id=torch.device("cpu", 0) if eager else None,
    )


def default_group() -> NcclStandIn:
    group = dist.group.WORLD
    assert isinstance(group, NcclStandIn)
    return group


def wait_alone(placement: Placement, pipe: Connection, handling: str, errors: Path) -> None:
    """Rank 0 waits for a second all-reduce that rank 1 never begins."""
    os.environ[ASYNC_ERROR_HANDLING] = handling
    if placement.rank == 0:
        with errors.open("wb") as file:
            os.dup2(file.fileno(), 2)
    join(placement)
    dist.all_reduce(torch.ones(4))
    if placement.rank == 1:
        signal.pause()
    default_group().timeout = SHORT
    partial = torch.full((4,), 2.0)
    dist.all_reduce(partial)
    try:
        dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as error:
        pipe.send((partial.tolist(), str(error)))


def ended(gang: Gang) -> int | None:
    gang.processes[0].join()
    return gang.processes[0].exitcode


@pytest.mark.parametrize("handling", [ErrorHandling.TEAR_DOWN, ErrorHandling.SKIP_CLEAN_UP])
def test_after_the_timeout_the_watchdog_ends_the_process(
    gangs: GangStarter, tmp_path: Path, handling: ErrorHandling
) -> None:
    errors = tmp_path / "errors"
    with gangs.gang(wait_alone, handling.value, errors, world_size=2) as gang:
        assert ended(gang) == -signal.SIGABRT
    assert TIMED_OUT in errors.read_text()


def test_or_it_aborts_the_communicator_and_the_output_is_partial(
    gangs: GangStarter, tmp_path: Path
) -> None:
    handling = ErrorHandling.CLEAN_UP_ONLY.value
    with gangs.gang(wait_alone, handling, tmp_path / "errors", world_size=2) as gang:
        partial, error = gang.pipes[0].recv()
    assert partial == [4.0, 4.0, 2.0, 2.0]
    assert error.startswith("NCCL communicator was aborted on rank 0.")
    assert TIMED_OUT in error


def exchange(placement: Placement, pipe: Connection) -> None:
    """Rank r sends r + 1 rows to rank 0 and one to rank 1."""
    join(placement)
    rank = placement.rank
    received = torch.zeros(3 if rank == 0 else 2)
    sent = torch.arange(rank + 2.0) + 10 * rank
    dist.all_to_all_single(received, sent, [1, 2] if rank == 0 else [1, 1], [rank + 1, 1])
    pipe.send(received.tolist())


def test_rows_are_exchanged_between_all(gangs: GangStarter) -> None:
    assert gangs.run(exchange, world_size=2) == [[0.0, 10.0, 11.0], [1.0, 12.0]]


def make(placement: Placement, pipe: Connection, eager: bool) -> None:
    """Make the default group, and begin an operation."""
    join(placement, eager=eager)
    group = default_group()
    before = group.connected
    dist.all_reduce(torch.ones(1))
    pipe.send((before, group.connected))


@pytest.mark.parametrize("eager", [False, True], ids=["lazily", "with a device_id"])
def test_the_communicator_is_made_by_the_first_operation(gangs: GangStarter, eager: bool) -> None:
    assert gangs.run(make, eager, world_size=2) == [(eager, True)] * 2


def compute_during_abort(placement: Placement, pipe: Connection) -> None:
    """Gather in the training thread while the control thread is in the middle of its abort."""
    join(placement)
    group, gathered = default_group(), torch.zeros(1)
    abort = group.abort

    def gather_first(reason: str = "") -> None:
        thread = threading.Thread(
            target=dist.all_gather_into_tensor, args=(gathered, torch.ones(1))
        )
        thread.start()
        thread.join()
        abort(reason)

    group.abort = gather_first
    abort_collectives()
    pipe.send((gathered.tolist(), dist.is_initialized()))


def test_an_abort_takes_no_collective_of_the_training_thread_for_its_own(
    gangs: GangStarter,
) -> None:
    """torch's abort would: what the step goes on with was never computed, and the abort raises."""
    assert gangs.run(compute_during_abort, world_size=1) == [([1.0], False)]
