from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from drumline_trainer.checkpoint.errors import CorruptCheckpointError, StaleMembershipError
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.ownership import run_name


def folder(
    path: Path, generation: int = 1, attempt: int = 0, *, owner: str = "job"
) -> CheckpointFolder:
    return CheckpointFolder(path=path, owner=owner, membership=(generation, attempt))


def commit(opened: CheckpointFolder, step: int, text: str = "") -> None:
    opened.unfinished_folder(step).mkdir()
    (opened.unfinished_folder(step) / "manifest.json").write_text(text)
    opened.commit(step, files=opened.begin(step))


def steps_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("step-*"))


def test_a_commit_is_seen_under_its_step_only_when_done(tmp_path: Path) -> None:
    opened = folder(tmp_path / "new" / "folder")
    opened.claim()
    opened.unfinished_folder(7).mkdir()
    assert opened.steps() == []
    opened.commit(7, files=opened.begin(7))
    commit(opened, 123_456_789)
    commit(opened, 20)
    assert opened.steps() == [123_456_789, 20, 7]


@pytest.mark.parametrize("newer", [(2, 0), (1, 6)])
def test_only_the_newest_membership_commits(tmp_path: Path, newer: tuple[int, int]) -> None:
    old = folder(tmp_path, 1, 5)
    old.claim()
    old.unfinished_folder(3).mkdir()
    folder(tmp_path, *newer).claim()
    with pytest.raises(StaleMembershipError, match=r"generation 1\.5 was replaced by"):
        commit(old, 4)
    with pytest.raises(StaleMembershipError):
        old.claim()
    assert folder(tmp_path, *newer).steps() == []


def test_the_same_membership_may_come_back(tmp_path: Path) -> None:
    folder(tmp_path, 2, 1).claim()
    folder(tmp_path, 2, 1).claim()
    commit(folder(tmp_path, 2, 1), 1)


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", ""), ("", "b")])
def test_another_job_takes_the_folder_over_whatever_its_generation(
    tmp_path: Path, first: str, second: str
) -> None:
    zombie = folder(tmp_path, 3, 2, owner=first)
    zombie.claim()
    commit(zombie, 1, "kept")
    zombie.unfinished_folder(2).mkdir()
    successor = folder(tmp_path, 1, 0, owner=second)
    successor.claim()
    assert steps_in(tmp_path) == ["step-00000001"]
    with pytest.raises(StaleMembershipError, match="has taken it over"):
        commit(zombie, 2)
    commit(successor, 2)
    assert successor.steps() == [2, 1]


def test_a_job_may_return_to_a_folder_that_another_one_used(tmp_path: Path) -> None:
    folder(tmp_path, 3, owner="a").claim()
    folder(tmp_path, 1, owner="b").claim()
    folder(tmp_path, 4, owner="a").claim()
    commit(folder(tmp_path, 4, owner="a"), 1)
    with pytest.raises(StaleMembershipError, match="job a has taken it over"):
        commit(folder(tmp_path, 1, owner="b"), 2)


def test_jobs_of_one_generation_never_write_into_one_folder(tmp_path: Path) -> None:
    unfinished = {folder(tmp_path, owner=owner).unfinished_folder(1) for owner in ("a", "b", "")}
    assert len(unfinished) == 3


def test_claiming_clears_what_older_ones_left_and_nothing_else(tmp_path: Path) -> None:
    commit(folder(tmp_path, 1, 0), 1)
    newer = [folder(tmp_path, 2, 4), folder(tmp_path, 3, 0)]
    other = folder(tmp_path, 7, owner="other")
    for left in [folder(tmp_path, 1, 0), folder(tmp_path, 2, 3), other, *newer]:
        left.unfinished_folder(9).mkdir()
    (tmp_path / "notes").mkdir()
    folder(tmp_path, 2, 3).claim()
    kept = [item.unfinished_folder(9).name for item in newer]
    assert steps_in(tmp_path) == ["step-00000001", *kept]
    assert (tmp_path / "notes").exists()


def test_a_commit_replaces_the_checkpoint_of_its_step(tmp_path: Path) -> None:
    opened = folder(tmp_path)
    commit(opened, 5, "old")
    commit(opened, 5, "new")
    assert (opened.step_folder(5) / "manifest.json").read_text() == "new"
    assert steps_in(tmp_path) == ["step-00000005"]


def test_a_replacement_cut_in_the_middle_is_undone(tmp_path: Path) -> None:
    opened = folder(tmp_path)
    commit(opened, 5, "old")
    opened.unfinished_folder(5).mkdir()
    opened.step_folder(5).rename(tmp_path / "step-00000005.old-01234567-1-0")
    opened.claim()
    assert (opened.step_folder(5) / "manifest.json").read_text() == "old"
    assert steps_in(tmp_path) == ["step-00000005"]


def test_a_replacement_cut_at_its_end_is_finished(tmp_path: Path) -> None:
    opened = folder(tmp_path)
    commit(opened, 5, "new")
    (tmp_path / "step-00000005.old-01234567-1-0").mkdir()
    opened.claim()
    assert (opened.step_folder(5) / "manifest.json").read_text() == "new"
    assert steps_in(tmp_path) == ["step-00000005"]


@pytest.mark.parametrize(
    ("verified", "kept"),
    [
        pytest.param([], [1, 2, 3, 4, 5], id="nothing is known to be good"),
        pytest.param([3], [1, 2, 3, 4, 5], id="fewer than to keep"),
        pytest.param([3, 5], [3, 4, 5], id="a newer one that is not known to be good stays"),
        pytest.param([4, 5, 3], [4, 5], id="more than to keep"),
    ],
)
def test_retention_counts_verified_ones(
    tmp_path: Path, verified: list[int], kept: list[int]
) -> None:
    opened = folder(tmp_path)
    for step in range(1, 6):
        commit(opened, step)
    opened.prune(keep=2, verified=verified)
    assert sorted(opened.steps()) == kept


def test_older_checkpoints_stay_where_the_storage_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is committed: an error here would fail it."""

    def lost(_file: object, _operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    opened = folder(tmp_path)
    for step in range(1, 4):
        commit(opened, step)
    with monkeypatch.context() as storage:
        storage.setattr(fcntl, "flock", lost)
        opened.prune(keep=1, verified=[3])
    (tmp_path / "away").mkdir()
    folder(tmp_path / "away" / "gone").prune(keep=1, verified=[3])
    assert opened.steps() == [3, 2, 1]


def test_what_cannot_be_looked_at_is_discarded_without_an_error(tmp_path: Path) -> None:
    """The first error of the save is the one to report."""
    opened = folder(tmp_path)
    opened.discard(opened.at("x" * 300))


def test_a_replaced_membership_removes_nothing(tmp_path: Path) -> None:
    first = folder(tmp_path, owner="run 1 on a")
    for step in range(1, 4):
        commit(first, step)
    folder(tmp_path, owner="run 2 on b").claim()
    first.prune(keep=1, verified=[3])
    assert first.steps() == [3, 2, 1]


def test_every_launch_without_an_operator_is_a_run_of_its_own(tmp_path: Path) -> None:
    first, second = (folder(tmp_path, owner=run_name()) for _ in range(2))
    assert first.unfinished_folder(1) != second.unfinished_folder(1)
    first.claim()
    second.claim()
    with pytest.raises(StaleMembershipError, match=r": run [0-9a-f]{12} on .* has taken it over"):
        commit(first, 1)


def test_a_damaged_owner_record_is_not_taken_for_none(tmp_path: Path) -> None:
    folder(tmp_path, 9).claim()
    (tmp_path / "membership.json").write_bytes(b'{"generation"')
    with pytest.raises(CorruptCheckpointError, match=r"membership\.json is damaged"):
        folder(tmp_path, 1).claim()


@pytest.mark.parametrize("kind", ["file", "link", "broken link"])
def test_what_lies_in_a_steps_place_and_is_no_folder_is_no_checkpoint_and_in_nobodys_way(
    tmp_path: Path, kind: str
) -> None:
    opened = folder(tmp_path / "checkpoints")
    opened.claim()
    commit(opened, 7, "elsewhere")
    elsewhere = tmp_path / "elsewhere"
    opened.step_folder(7).rename(elsewhere)
    for place in (opened.step_folder(7), opened.step_folder(8), opened.unfinished_folder(9)):
        if kind == "file":
            place.write_text("no folder")
        else:
            place.symlink_to(elsewhere if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(CorruptCheckpointError, match="step-00000007: not a folder"):
        opened.committed(7)
    opened.claim()
    for step in (7, 9, 10):
        commit(opened, step, "ours")
    opened.prune(keep=2, verified=[9, 10])
    assert steps_in(opened.path) == ["step-00000009", "step-00000010"]
    assert (opened.committed(9).path / "manifest.json").read_text() == "ours"
    assert (elsewhere / "manifest.json").read_text() == "elsewhere"
