"""Which errors leave a rank its process: all, once it was told to leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO

import pytest
import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.control import Control
from drumline_agent.rank_protocol.orders import Interrupt
from drumline_contract.config import ConfigError
from drumline_trainer.checkpoint.errors import CorruptCheckpointError, PeerSaveError, SaveError
from drumline_trainer.rank.run import _parks  # pyright: ignore[reportPrivateUsage] - the decision itself

RAISED = {
    "in a collective": dist.DistBackendError("NCCL communicator was aborted on rank 1. "),
    "in a call whose group is gone": ValueError("Default process group has not been initialized"),
    "in a table of torch's that is empty": KeyError("0"),
    "in a backward hook": RuntimeError("The size of tensor a (3) must match the size of tensor b"),
    "in the thread of offloads": RuntimeError("Trying to copy a tensor that is freed"),
    "in the save beside the steps": SaveError("checkpoint of step 8: rank 1: bad descriptor"),
    "in a save of another rank": PeerSaveError("checkpoint of step 8: rank 0: disk full"),
    "in the evaluation": AssertionError("no batch"),
    "while it restores": CorruptCheckpointError("no step verifies"),
    "while it reads the configuration": ConfigError("model: no"),
    "for want of memory": torch.OutOfMemoryError("CUDA out of memory."),
}


@pytest.fixture
def agent() -> Iterator[tuple[Control, FileIO]]:
    """A rank's control in attempt 0 of generation 1, and the agent's end of its pipe."""
    reader, writer = os.pipe()
    control = Control(reader)
    control.enter((1, 0))
    with FileIO(writer, "wb") as orders:
        yield control, orders
    with pytest.raises(ConnectionError):
        control.wait_for_placement()


@pytest.fixture
def control(agent: tuple[Control, FileIO]) -> Control:
    """Of a rank that was told nothing."""
    return agent[0]


@pytest.fixture
def leaving(agent: tuple[Control, FileIO]) -> Control:
    """Of one that was told to leave."""
    control, orders = agent
    orders.write(Interrupt(generation=1, attempt=0).to_json().encode() + b"\n")
    while not control.leave_ordered:
        pass
    return control


@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
def test_who_was_told_to_leave_parks_whatever_is_raised(leaving: Control, error: Exception) -> None:
    assert _parks(error, control=leaving)


def test_but_not_with_a_device_that_has_failed(leaving: Control) -> None:
    error = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
    assert not _parks(error, control=leaving)


@pytest.mark.parametrize("error", RAISED.values(), ids=RAISED)
def test_nobody_else_parks_but_who_has_lost_a_peer(control: Control, error: Exception) -> None:
    lost = isinstance(error, dist.DistBackendError | PeerSaveError)
    assert _parks(error, control=control) is lost
