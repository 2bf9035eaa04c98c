"""Each file of a checkpoint is read once, whatever number of ranks needs it."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.restore import restore
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding import exchange as exchanges
from drumline_trainer.sharding.byte_collectives import Accepted, Rejected
from drumline_trainer.sharding.exchange import exchange
from drumline_trainer.sharding.exchange_rounds import SharedRows, Tag
from tests.gloo.configs import small
from tests.gloo.counted_reads import CountedStorage
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import CPU, opened, training_state

pytestmark = pytest.mark.extended(keep=2)


def save_numbered(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    """Save steps 1 and 2: every element has a value of its own, by its place in the tensor."""
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement)
    for step in (1, 2):
        for local in slices:
            whole = torch.arange(local.tensor.new_empty(local.shape).numel()) % 1009 + step
            rows = tuple(
                slice(offset, offset + size)
                for offset, size in zip(local.box.offsets, local.box.shape, strict=True)
            )
            local.tensor.copy_(whole.view(local.shape)[rows])
        saved = checkpoints.save(step=step, slices=slices, trainer={})
    pipe.send(saved.size_bytes)
    dist.destroy_process_group()


def restore_counted(
    placement: Placement, pipe: Connection, config: TrainerConfig, hosts: int, round_bytes: int
) -> None:
    """Restore; send the step, whether every value is right, what was read and sent away."""
    exchanges.ROUND_BYTES = round_bytes  # type: ignore[misc]
    slices = training_state(placement, config)
    storage = CountedStorage(
        storage=opened(placement).storage, is_cached_by_nodes=True, overwrites=True
    )
    socket.gethostname = lambda: str(placement.rank % hosts)
    try:
        restored = restore(storage=storage, slices=slices, device=CPU)
    except CorruptCheckpointError as error:
        pipe.send(str(error))
    else:
        assert restored is not None
        right = True
        for local in slices:
            whole = torch.arange(local.tensor.new_empty(local.shape).numel()) % 1009
            rows = tuple(
                slice(offset, offset + size)
                for offset, size in zip(local.box.offsets, local.box.shape, strict=True)
            )
            right &= bool((local.tensor == whole.view(local.shape)[rows] + restored.step).all())
        pipe.send((restored.step, right, storage.read_bytes))
    dist.destroy_process_group()


LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"data_parallel": "ddp"},
    "zero1": {"data_parallel": "zero1"},
    "hsdp": {"data_parallel": "fsdp", "replicate": 2},
    "tensor": {"tensor": 2, "data_parallel": "ddp"},
    "fsdp": {"data_parallel": "fsdp"},
}


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        pytest.param(("ddp", 2), ("ddp", 4), id="copies, and more of them"),
        pytest.param(("zero1", 2), ("zero1", 2), id="weights whole, moments cut"),
        pytest.param(("hsdp", 4), ("hsdp", 4), id="copies of sharded groups"),
        pytest.param(("hsdp", 4), ("fsdp", 3), id="copies of sharded groups to three ranks"),
        pytest.param(("tensor", 4), ("tensor", 4), id="tensor and copies"),
        pytest.param(("fsdp", 2), ("fsdp", 4), id="more ranks"),
    ],
)
def test_storage_is_read_once(
    gangs: GangStarter, tmp_path: Path, saved: tuple[str, int], restored: tuple[str, int]
) -> None:
    place = {"checkpoint_folder": tmp_path / "checkpoints"}
    model = {"kv_heads": 2}
    config = small(tmp_path, model=model, parallelism=LAYOUTS[saved[0]])
    sizes = gangs.run(save_numbered, config, world_size=saved[1], **place)
    config = small(tmp_path, model=model, parallelism=LAYOUTS[restored[0]])
    ranks = restored[1]
    results = gangs.run(restore_counted, config, ranks, 4_000, world_size=ranks, **place)
    assert [(step, right) for step, right, _ in results] == [(2, True)] * ranks
    assert sum(read for _, _, read in results) == sizes[0]


def test_ranks_of_a_host_read_what_its_page_cache_holds_and_other_hosts_are_sent_it(
    gangs: GangStarter, tmp_path: Path
) -> None:
    place = {"checkpoint_folder": tmp_path / "checkpoints"}
    config = small(tmp_path, parallelism=LAYOUTS["ddp"])
    [size, _] = gangs.run(save_numbered, config, world_size=2, **place)
    results = gangs.run(restore_counted, config, 2, 1 << 20, world_size=4, **place)
    assert [(step, right) for step, right, _ in results] == [(2, True)] * 4
    read = sum(read for _, _, read in results)
    assert 2 * size - 100 < read <= 2 * size  # the second file of so small copies has no tensors


@pytest.mark.parametrize("damaged", ["rank-00000-of-00002", "rank-00001-of-00002"])
def test_damage_that_one_rank_reads_sends_all_to_the_older_checkpoint(
    gangs: GangStarter, tmp_path: Path, damaged: str
) -> None:
    place = {"checkpoint_folder": tmp_path / "checkpoints"}
    config = small(tmp_path, parallelism=LAYOUTS["ddp"])
    gangs.run(save_numbered, config, world_size=2, **place)
    file = tmp_path / "checkpoints" / "step-00000002" / f"{damaged}.safetensors"
    body = bytearray(file.read_bytes())
    body[-1] ^= 1  # most of it has been sent when that is seen
    file.write_bytes(body)
    results = gangs.run(restore_counted, config, 2, 4_000, world_size=2, **place)
    assert [(step, right) for step, right, _ in results] == [(1, True)] * 2


class RefusedError(Exception):
    """Of the exchange below."""


def exchange_numbers(placement: Placement, pipe: Connection, refusing: int, when: str) -> None:
    """Each rank sends ten numbers to all, in rounds of two; one may refuse."""
    join(placement, device=CPU)
    exchanges.ROUND_BYTES = 16 * placement.world_size  # type: ignore[misc]
    taken: list[tuple[int, int]] = []
    everyone = tuple(range(placement.world_size))

    def outgoing() -> Any:
        for number in range(10):
            if when == "reading" and placement.rank == refusing and number == 5:
                raise RefusedError("a broken five")
            data = torch.tensor([number + 100 * placement.rank]).view(torch.uint8)
            yield SharedRows.of(
                data[:7].unsqueeze(0), tag=(placement.rank, number, 0), ranks=everyone
            )

    def receive(tag: Tag, _row: int, data: torch.Tensor) -> None:
        value = int(torch.cat([data, torch.zeros(1, dtype=torch.uint8)]).view(torch.int64))
        assert value == tag[1] + 100 * tag[0]
        if when == "receiving" and placement.rank == refusing and value == 105:
            raise RefusedError("a broken five")
        taken.append(tag[:2])

    vote = exchange(outgoing(), receive=receive, refusals=(RefusedError,), device=CPU)
    pipe.send((vote, sorted(taken)))
    dist.destroy_process_group()


def test_rows_arrive_whole_whatever_their_size(gangs: GangStarter) -> None:
    expected = [(rank, number) for rank in range(3) for number in range(10)]
    assert gangs.run(exchange_numbers, -1, "", world_size=3) == [(Accepted(), expected)] * 3


@pytest.mark.parametrize("when", ["reading", "receiving"])
def test_what_one_rank_refuses_ends_the_exchange_on_all(gangs: GangStarter, when: str) -> None:
    results = gangs.run(exchange_numbers, 2, when, world_size=3)
    assert {vote for vote, _ in results} == {Rejected("rank 2: a broken five")}
    assert max(len(taken) for _, taken in results) < 30
