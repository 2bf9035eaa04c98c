"""What a commit can come to, and how the other ranks hear of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline_trainer.checkpoint.commit import (
    CommitOutcome,
    Committed,
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
    [Committed(digest="ab" * 32, size_bytes=7), Rejected("disk full"), Superseded("replaced")],
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
