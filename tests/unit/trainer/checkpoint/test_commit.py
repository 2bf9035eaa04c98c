"""What a commit can come to, and how the other ranks hear of it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from drumline_trainer.checkpoint import commit as commits
from drumline_trainer.checkpoint.commit import (
    CommitOutcome,
    Committed,
    StorageFailed,
    Superseded,
    commit,
    decode,
    encode,
)
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.sharding.byte_collectives import Rejected

FAILED = json.dumps({"error": "rank 0: disk full"}).encode()


def folder(path: Path, *membership: int) -> CheckpointFolder:
    return CheckpointFolder(path=path, owner="job", membership=(membership[0], membership[1]))


@pytest.mark.parametrize(
    "outcome",
    [
        Committed(digest="ab" * 32, size_bytes=7),
        Rejected("disk full"),
        StorageFailed("disk full"),
        Superseded("replaced"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_every_outcome_reaches_the_other_ranks(outcome: CommitOutcome) -> None:
    assert decode(encode(outcome)) == outcome


@pytest.mark.parametrize("message", [{}, [], {"digest": "ab"}, {"error": 1}])
def test_another_message_is_no_outcome(message: object) -> None:
    with pytest.raises(TypeError, match="not an outcome"):
        decode(json.dumps(message).encode())


def test_a_rank_that_cannot_write_rejects_the_commit(tmp_path: Path) -> None:
    claimed = folder(tmp_path, 1, 0)
    claimed.claim()
    outcome = commit(claimed, step=1, trainer={}, reports=[FAILED])
    assert outcome == Rejected("rank 0: disk full")
    assert claimed.steps() == []


def test_a_replaced_membership_hears_that_it_was_replaced(tmp_path: Path) -> None:
    replaced = folder(tmp_path, 1, 0)
    replaced.claim()
    folder(tmp_path, 2, 0).claim()
    outcome = commit(replaced, step=1, trainer={}, reports=[FAILED])
    assert isinstance(outcome, Superseded)
    assert "generation 1.0 was replaced by 2.0" in outcome.reason


def test_a_rank_whose_storage_is_full_is_not_to_blame(tmp_path: Path) -> None:
    claimed = folder(tmp_path, 1, 0)
    claimed.claim()
    full = json.dumps({"error": "rank 1: No space left on device", "storage": True}).encode()
    outcome = commit(claimed, step=1, trainer={}, reports=[FAILED, full])
    assert outcome == StorageFailed("rank 0: disk full; rank 1: No space left on device")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(errno.ENOSPC, StorageFailed), (errno.EIO, StorageFailed), (errno.EACCES, Rejected)],
)
def test_what_the_commit_itself_cannot_write_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, outcome: type[CommitOutcome]
) -> None:
    def fails(path: Path, body: bytes) -> None:
        raise OSError(number, os.strerror(number), str(path), len(body))

    claimed, report = folder(tmp_path, 1, 0), a_report(tmp_path)
    claimed.claim()
    monkeypatch.setattr(commits, "write_durably", fails)
    assert isinstance(commit(claimed, step=1, trainer={}, reports=[report]), outcome)


def test_a_manifest_that_no_restore_would_read_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, report = folder(tmp_path, 1, 0), a_report(tmp_path)
    claimed.claim()
    monkeypatch.setattr(commits, "MAX_MANIFEST_BYTES", 100)
    outcome = commit(claimed, step=1, trainer={}, reports=[report])
    assert isinstance(outcome, Rejected)
    assert "bytes is over 100, the most that a restore reads" in outcome.reason
    assert claimed.steps() == []


def a_report(path: Path) -> bytes:
    """Of a rank that has written one tensor."""
    target = folder(path, 1, 0).unfinished_folder(1)
    target.mkdir()
    parts = {"weight": ["F32", [4], [0], [4]]}
    file = {"name": "rank-00000-of-00001.safetensors", "bytes": 1, "digest": "0" * 32}
    return json.dumps({"files": [{**file, "parts": parts}]}).encode()
