from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline_client.environment import RankPlace, SnapshotPlace
from drumline_client.snapshot_file import SnapshotError, open_snapshot, snapshot_file
from drumline_client.state_snapshots import StateSnapshots
from drumline_client.wire import RestoreFailed, SnapshotWritten

RANK = RankPlace(rank=1, local_rank=1, world_size=2)


class Attempt:
    """A process of an attempt, and what it has told its agent."""

    def __init__(self, folder: Path, *, restore: int | None = None, rank: RankPlace = RANK) -> None:
        self.said: list[Any] = []
        place = SnapshotPlace(folder=folder, generation=2, attempt=1, restore_step=restore)
        self.snapshots = StateSnapshots(place, rank=rank, deliver=self.said.append)

    def take(self, step: int, state: dict[str, Any]) -> None:
        self.snapshots.take(step, state)
        self.snapshots.finish()


def test_the_next_attempt_goes_on_with_the_state_and_the_random_states(tmp_path: Path) -> None:
    state = {"weights": torch.arange(4.0), "seen": 7}
    Attempt(tmp_path).take(10, state)
    expected = torch.rand(3), random.random()

    again = {"weights": torch.zeros(4), "seen": 0}
    attempt = Attempt(tmp_path, restore=10)
    assert attempt.snapshots.restore(again) == 10
    assert torch.equal(again["weights"], state["weights"])  # type: ignore[arg-type]
    assert again["seen"] == 7
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]
    assert attempt.said == []


def test_torch_needs_no_numpy_for_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: torch.Tensor) -> None:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", unavailable)
    attempt = Attempt(tmp_path)
    attempt.take(10, {"weights": torch.ones(4)})
    assert [message.step for message in attempt.said] == [10]


def test_the_agent_hears_what_the_file_says_once_it_is_complete(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.take(10, {"weights": torch.ones(4)})
    path = snapshot_file(tmp_path, rank=1, step=10)
    with open_snapshot(path) as (header, _):
        membership = (header.generation, header.attempt, header.world_size)
        digest = header.sha256
    [written] = attempt.said
    assert isinstance(written, SnapshotWritten)
    assert membership == (2, 1, 2)
    assert (written.step, written.sha256) == (10, digest)
    assert written.bytes == path.stat().st_size


def test_training_goes_on_in_the_tensors_while_their_copy_is_written(tmp_path: Path) -> None:
    weights = torch.ones(1 << 20)
    attempt = Attempt(tmp_path)
    attempt.snapshots.take(1, {"weights": weights})
    weights.zero_()
    attempt.snapshots.finish()
    again = {"weights": torch.empty(1 << 20)}
    Attempt(tmp_path, restore=1).snapshots.restore(again)
    assert bool((again["weights"] == 1).all())


@pytest.mark.parametrize("damage", ["flipped", "missing", "of another size"])
def test_what_does_not_verify_is_reported_and_changes_nothing(tmp_path: Path, damage: str) -> None:
    Attempt(tmp_path).take(10, {"weights": torch.ones(4)})
    path = snapshot_file(tmp_path, rank=1, step=10)
    rank = RANK
    if damage == "flipped":
        whole = bytearray(path.read_bytes())
        whole[-10] ^= 1
        path.write_bytes(whole)
    elif damage == "missing":
        path.unlink()
    else:
        rank = RankPlace(rank=1, local_rank=1, world_size=4)
    attempt = Attempt(tmp_path, restore=10, rank=rank)
    weights = torch.zeros(4)
    with pytest.raises(SnapshotError):
        attempt.snapshots.restore({"weights": weights})
    [failed] = attempt.said
    assert isinstance(failed, RestoreFailed)
    assert failed.step == 10
    assert not weights.any()


def test_a_new_attempt_removes_what_is_newer_than_what_all_ranks_have(tmp_path: Path) -> None:
    before = Attempt(tmp_path)
    before.take(10, {"x": 1})
    before.take(20, {"x": 2})
    (tmp_path / "rank-00001" / "step-00000030.snapshot.part").touch()
    Attempt(tmp_path, restore=10)
    assert [file.name for file in (tmp_path / "rank-00001").iterdir()] == ["step-00000010.snapshot"]
    Attempt(tmp_path)
    assert not list((tmp_path / "rank-00001").iterdir())


def test_a_program_that_begins_earlier_by_itself_starts_another_history(tmp_path: Path) -> None:
    before = Attempt(tmp_path)
    before.take(10, {"x": 1})
    before.take(20, {"x": 2})
    attempt = Attempt(tmp_path, restore=20)
    attempt.take(5, {"x": 3})
    assert [file.name for file in (tmp_path / "rank-00001").iterdir()] == ["step-00000005.snapshot"]
    assert attempt.snapshots.take(5, {"x": 3}) == 0
    with pytest.raises(ValueError, match=r"step 4.*step 5"):
        attempt.snapshots.take(4, {"x": 3})


def test_memory_that_is_too_small_is_a_warning_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=7)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    attempt = Attempt(tmp_path)
    attempt.take(10, {"x": 1})
    attempt.take(20, {"x": 1})
    assert attempt.said == []
    [record] = caplog.records
    assert "no snapshot of step 10" in record.message
    assert "7 free" in record.message
