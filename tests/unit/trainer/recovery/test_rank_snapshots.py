from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drumline_agent.rank_protocol.messages import SnapshotTaken
from drumline_agent.rank_protocol.orders import Replicated
from drumline_agent.rank_protocol.placement import Placement
from drumline_client.snapshot_file import (
    KEPT_SNAPSHOTS,
    SnapshotError,
    SnapshotHeader,
    open_snapshot,
    read_header,
    snapshot_file,
    snapshot_steps,
)
from drumline_contract.config import TrainerConfig
from drumline_trainer.recovery.rank_snapshots import RankSnapshots
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.byte_collectives import Rejected, Vote
from drumline_trainer.sharding.slices import TensorSlice

STATE = {"cursor": 24, "losses": [[3, 2.5]]}


def tensors(*, fill: float | None = None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    made = {
        "model.a": torch.randn(7, 5, generator=generator),
        "empty": torch.zeros(0, 5),
        "model.b": torch.randn(3, generator=generator, dtype=torch.float64),
    }
    if fill is not None:
        for tensor in made.values():
            tensor.fill_(fill)
    return made


def snapshots(
    folder: Path,
    held: dict[str, Tensor],
    *,
    events: list[SnapshotTaken] | None = None,
    config: TrainerConfig | None = None,
    rank: int = 1,
    world_size: int = 2,
) -> RankSnapshots:
    return RankSnapshots(
        [
            TensorSlice(
                name=name,
                shape=tuple(tensor.shape),
                box=Box(offsets=(0,) * tensor.dim(), shape=tuple(tensor.shape)),
                tensor=tensor,
            )
            for name, tensor in held.items()
        ],
        config=config or TrainerConfig(),
        placement=Placement(
            rank=rank,
            world_size=world_size,
            generation=3,
            attempt=1,
            snapshot_folder=folder,
        ),
        device=torch.device("cpu"),
        tell=(events if events is not None else []).append,
    )


def taken(folder: Path, *steps: int) -> RankSnapshots:
    """A rank that has taken snapshots of these steps."""
    taker = snapshots(folder, tensors())
    for step in steps:
        taker.take(step, trainer=STATE)
    taker.finish()
    return taker


def own_vote(vote: Vote) -> Vote:
    return vote


def test_what_comes_back_is_what_was_taken(tmp_path: Path) -> None:
    events: list[SnapshotTaken] = []
    held = tensors()
    taker = snapshots(tmp_path, held, events=events)
    taker.take(42, trainer=STATE)
    for tensor in held.values():
        tensor.fill_(-1.0)  # training goes on at once
    taker.finish()
    blank = tensors(fill=0.0)
    header = snapshots(tmp_path, blank).restore(42, agree=own_vote)
    assert isinstance(header, SnapshotHeader)
    assert {n: t.numpy().tobytes() for n, t in blank.items()} == {
        n: t.numpy().tobytes() for n, t in tensors().items()
    }
    assert (header.step, header.trainer, header.generation, header.attempt) == (42, STATE, 3, 1)
    file = snapshot_file(tmp_path, rank=1, step=42)
    [event] = events
    assert (event.step, event.bytes, event.sha256) == (42, file.stat().st_size, header.sha256)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    taken(tmp_path, 1, 2, 3, 4)
    assert snapshot_steps(tmp_path, rank=1) == [4, 3]
    assert KEPT_SNAPSHOTS == 2
    assert snapshot_steps(tmp_path, rank=0) == []


def test_every_flipped_bit_and_every_cut_is_seen(tmp_path: Path) -> None:
    taken(tmp_path, 1)
    file = snapshot_file(tmp_path, rank=1, step=1)
    intact = file.read_bytes()
    choice = random.Random(3)
    for _ in range(300):
        place = choice.randrange(len(intact))
        damaged = bytearray(intact)
        damaged[place] ^= 1 << choice.randrange(8)
        file.write_bytes(choice.choice([bytes(damaged), intact[:place]]))
        blank = tensors(fill=0.0)
        answer = snapshots(tmp_path, blank).restore(1, agree=own_vote)
        assert isinstance(answer, Rejected)
        assert not any(tensor.any() for tensor in blank.values())
        with pytest.raises(SnapshotError), open_snapshot(file):
            pass
    file.write_bytes(intact)
    assert isinstance(taken(tmp_path).restore(1, agree=own_vote), SnapshotHeader)


def test_the_rejection_of_a_single_rank_counts_for_all(tmp_path: Path) -> None:
    taken(tmp_path, 1)
    blank = tensors(fill=0.0)
    answer = snapshots(tmp_path, blank).restore(1, agree=lambda _: Rejected("rank 0: no"))
    assert answer == Rejected("rank 0: no")
    assert not any(tensor.any() for tensor in blank.values())


@pytest.mark.parametrize(
    "other",
    [
        {"world_size": 4},
        {"config": TrainerConfig(seed=1)},
        {"held": {"model.a": torch.zeros(7, 5)}},
    ],
    ids=["gang size", "configuration", "shards"],
)
def test_a_snapshot_of_something_else_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    taken(tmp_path, 1)
    asked = {"held": tensors(fill=0.0), **other}
    answer = snapshots(tmp_path, **asked).restore(1, agree=own_vote)  # pyright: ignore[reportArgumentType]
    assert isinstance(answer, Rejected)


def test_another_ranks_file_under_this_ranks_name_is_refused(tmp_path: Path) -> None:
    taken(tmp_path, 1)
    stranger = snapshot_file(tmp_path, rank=0, step=1)
    stranger.parent.mkdir()
    snapshot_file(tmp_path, rank=1, step=1).rename(stranger)
    answer = snapshots(tmp_path, tensors(), rank=0).restore(1, agree=own_vote)
    assert isinstance(answer, Rejected)
    assert "another rank" in answer.reason


def test_another_steps_file_under_this_steps_name_is_refused(tmp_path: Path) -> None:
    taken(tmp_path, 7)
    snapshot_file(tmp_path, rank=1, step=7).rename(snapshot_file(tmp_path, rank=1, step=8))
    answer = snapshots(tmp_path, tensors()).restore(8, agree=own_vote)
    assert "at another step" in str(answer)


def test_abandoned_steps_other_gangs_and_leftovers_are_forgotten(tmp_path: Path) -> None:
    taker = taken(tmp_path, 3, 4)
    leftover = snapshot_file(tmp_path, rank=1, step=5).with_suffix(".snapshot.part")
    leftover.touch()
    taker.remove_unusable(after=3)
    assert snapshot_steps(tmp_path, rank=1) == [3]
    assert not leftover.exists()
    snapshots(tmp_path, tensors(), world_size=4).remove_unusable(after=3)
    assert snapshot_steps(tmp_path, rank=1) == []


def test_a_rank_without_a_shard_has_snapshots_too(tmp_path: Path) -> None:
    nothing = {"model.a": torch.zeros(0, 5)}
    taker = snapshots(tmp_path, nothing)
    taker.take(1, trainer=STATE)
    taker.finish()
    assert isinstance(taker.restore(1, agree=own_vote), SnapshotHeader)


def test_a_full_memory_is_said_when_the_file_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "rank-00001").touch()  # where the folder should be
    taker = snapshots(tmp_path, tensors())
    taker.take(1, trainer=STATE)
    with pytest.raises(OSError, match="rank-00001"):
        taker.finish()


def test_the_header_is_read_without_the_body(tmp_path: Path) -> None:
    taken(tmp_path, 6)
    file = snapshot_file(tmp_path, rank=1, step=6)
    whole = file.read_bytes()
    header = read_header(file)
    file.write_bytes(whole[: len(whole) - header.body_bytes])
    assert read_header(file) == header
    file.write_bytes(b"")
    with pytest.raises(SnapshotError, match="header"):
        read_header(file)


def test_on_shared_cores_a_snapshot_costs_what_agents_take_too(tmp_path: Path) -> None:
    taker = taken(tmp_path, 5)
    own = taker.costs(0.0, replicated=None)
    assert own == (taker.written.training_seconds, taker.written.seconds)
    copy = Replicated(step=5, seconds=0.5, processor_seconds=0.25)
    assert taker.costs(0.0, replicated=copy) == (own[0] + 0.25, own[1] + 0.5)
