"""Flight records of the stand-in are those that torch writes, and are read as those are."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from drumline_agent.leader.hang_blame import HangCause, blame
from drumline_agent.rank_protocol.collective_progress import (
    CollectiveProgress,
    GroupProgress,
    progress_of,
)
from drumline_agent.rank_protocol.placement import Placement
from tests.gloo.gang import GangStarter
from tests.gloo.nccl.device import DEVICE
from tests.gloo.nccl.flight_records import RECORDS
from tests.gloo.nccl.process_group import ASYNC_ERROR_HANDLING, ErrorHandling
from tests.gloo.nccl.test_process_group import join

pytestmark = pytest.mark.extended(keep=2, of="the stand-in for NCCL")

C10D: Any = import_module("torch._C._distributed_c10d")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a rank has seen."""

    received: float
    dump: dict[str, Any]
    before: CollectiveProgress
    hanging: CollectiveProgress


def progress(rank: int) -> CollectiveProgress:
    return progress_of(json.loads(RECORDS.dump()), rank=rank, timed=True)


def gathered_over_gloo(_: Placement, pipe: Connection) -> None:
    """One operation that torch itself records."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "10"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    pipe.send(C10D._dump_fr_trace_json())


def record(placement: Placement, pipe: Connection) -> None:
    """A sum over all, one over a group, a batch of transfers; then a device hangs."""
    os.environ[ASYNC_ERROR_HANDLING] = (
        ErrorHandling.NO_HANDLING.value
    )  # one may end before the other
    join(placement)
    rank, other = placement.rank, 1 - placement.rank
    group = dist.new_group([0, 1])
    for wanted in (None, group, None):
        dist.all_reduce(torch.ones(1), group=wanted)
    received = torch.zeros(1)
    batch = [
        dist.P2POp(dist.isend, torch.full((1,), 1.0 + rank), group=group, group_peer=other),
        dist.P2POp(dist.irecv, received, group=group, group_peer=other),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    done = (received.item(), json.loads(RECORDS.dump()), progress(rank))
    if rank == 1:
        DEVICE.hang()
    dist.all_reduce(torch.ones(1), async_op=True)
    while rank == 0 and progress(rank).groups[0].started != 3:
        pass
    pipe.send((*done, progress(rank)))


@pytest.fixture(scope="module")
def recorded(gangs: GangStarter) -> list[Recorded]:
    """Of two ranks, the second of which hangs."""
    return [Recorded(*each) for each in gangs.run(record, world_size=2)]


def test_torch_itself_writes_these_fields(gangs: GangStarter, recorded: list[Recorded]) -> None:
    (theirs,) = gangs.run(gathered_over_gloo, world_size=1)
    whole = json.loads(theirs)
    assert recorded[0].dump.keys() == whole.keys()
    assert recorded[0].dump["entries"][0].keys() == whole["entries"][0].keys()
    assert recorded[0].dump["version"] == whole["version"]


def test_a_batch_is_one_operation_whose_parts_have_no_state(recorded: list[Recorded]) -> None:
    transfers = [entry for entry in recorded[0].dump["entries"] if entry["is_p2p"]]
    assert [(entry["profiling_name"], entry["state"]) for entry in transfers] == [
        ("nccl:send 0->1", "scheduled"),
        ("nccl:recv 0<-1", "scheduled"),
        ("nccl:coalesced", "completed"),
    ]
    assert {entry["p2p_seq_id"] for entry in transfers} == {1}
    assert [each.received for each in recorded] == [2.0, 1.0]


def test_positions_are_counted_for_each_group(recorded: list[Recorded]) -> None:
    assert recorded[0].before == CollectiveProgress(
        groups=(
            GroupProgress(group="0", size=2, enqueued=2, started=2, completed=2),
            GroupProgress(group="1", size=2, enqueued=1, started=1, completed=1),
        )
    )


def test_a_device_that_hangs_does_not_come_to_what_its_process_has_called(
    recorded: list[Recorded],
) -> None:
    reached = [each.hanging.groups[0] for each in recorded]
    assert [(each.enqueued, each.started, each.completed) for each in reached] == [
        (3, 3, 2),
        (3, 2, 2),
    ]
    judged = blame(dict(enumerate(each.hanging for each in recorded)), ranks=[0, 1])
    assert judged is not None
    assert (judged.cause, judged.ranks) == (HangCause.DEVICE, (1,))
    assert judged.where == "all_reduce #3 of group 0"
