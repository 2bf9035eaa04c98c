"""What a commit can come to, and how the other ranks hear of it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from drumline_contract.config import MODEL_PRESETS
from drumline_trainer.checkpoint import commit as commits
from drumline_trainer.checkpoint import folder_files
from drumline_trainer.checkpoint.commit import (
    CommitOutcome,
    Committed,
    NotCommitted,
    StorageFailed,
    Superseded,
    commit,
    decode,
    encode,
)
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.manifest import FileRecord, Manifest
from drumline_trainer.checkpoint.rank_report import (
    SliceGroup,
    WriteFailed,
    WrittenFile,
    encode_report,
)
from drumline_trainer.checkpoint.restore import read_manifest
from drumline_trainer.models.hugging_face.names import our_shapes
from drumline_trainer.sharding.boxes import Box
from tests.texts import missing

FAILED = encode_report(WriteFailed("rank 0: disk full", by_storage=False))


def folder(path: Path, *membership: int) -> CheckpointFolder:
    return CheckpointFolder(path=path, owner="job", membership=(membership[0], membership[1]))


KINDS = ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq")


@pytest.mark.parametrize(
    "outcome",
    [
        Committed(digest="ab" * 32, size_bytes=7),
        NotCommitted("disk full", ranks=(1, 3)),
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
    outcome = commit(claimed, files=claimed.begin(1), step=1, trainer={}, reports=[FAILED])
    assert outcome == NotCommitted("rank 0: disk full", ranks=(0,))
    assert claimed.steps() == []


def test_of_several_ranks_those_that_cannot_write_are_named(tmp_path: Path) -> None:
    claimed, written = folder(tmp_path, 1, 0), a_report(tmp_path)
    claimed.claim()
    outcome = commit(
        claimed, files=claimed.begin(1), step=1, trainer={}, reports=[written, FAILED, written]
    )
    assert outcome == NotCommitted("rank 0: disk full", ranks=(1,))


def test_a_replaced_membership_hears_that_it_was_replaced(tmp_path: Path) -> None:
    replaced = folder(tmp_path, 1, 0)
    replaced.claim()
    folder(tmp_path, 2, 0).claim()
    outcome = commit(replaced, files=replaced.begin(1), step=1, trainer={}, reports=[FAILED])
    assert isinstance(outcome, Superseded)
    assert "generation 1.0 was replaced by 2.0" in outcome.reason


def test_a_rank_whose_storage_is_full_is_not_to_blame(tmp_path: Path) -> None:
    claimed = folder(tmp_path, 1, 0)
    claimed.claim()
    full = encode_report(WriteFailed("rank 1: No space left on device", by_storage=True))
    outcome = commit(claimed, files=claimed.begin(1), step=1, trainer={}, reports=[FAILED, full])
    assert isinstance(outcome, StorageFailed)
    assert not missing(outcome.reason, "rank 0: disk full", "rank 1: No space left on device")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(errno.ENOSPC, StorageFailed), (errno.EIO, StorageFailed), (errno.EACCES, NotCommitted)],
)
def test_what_the_commit_itself_cannot_write_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, outcome: type[CommitOutcome]
) -> None:
    def fails(path: Path, body: bytes) -> None:
        raise OSError(number, os.strerror(number), str(path), len(body))

    claimed, report = folder(tmp_path, 1, 0), a_report(tmp_path)
    claimed.claim()
    monkeypatch.setattr(folder_files, "write_durably", fails)
    assert isinstance(
        commit(claimed, files=claimed.begin(1), step=1, trainer={}, reports=[report]), outcome
    )


def test_a_manifest_that_no_restore_would_read_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, report = folder(tmp_path, 1, 0), a_report(tmp_path)
    claimed.claim()
    monkeypatch.setattr(commits, "MAX_MANIFEST_BYTES", 100)
    outcome = commit(claimed, files=claimed.begin(1), step=1, trainer={}, reports=[report])
    assert isinstance(outcome, NotCommitted)
    assert not missing(outcome.reason, "100")
    assert claimed.steps() == []


def a_report(path: Path) -> bytes:
    """Of a rank that has written one tensor."""
    target = folder(path, 1, 0).unfinished_folder(1)
    target.mkdir()
    return reported(0, of=1, by_shape={(4,): ["weight"]})


def reported(rank: int, *, of: int, by_shape: dict[tuple[int, ...], list[str]]) -> bytes:
    """The report of one of so many ranks that share out the rows of these tensors."""
    groups: list[SliceGroup] = []
    for shape, names in by_shape.items():
        start, stop = shape[0] * rank // of, shape[0] * (rank + 1) // of
        box = Box(offsets=(start, *[0] * (len(shape) - 1)), shape=(stop - start, *shape[1:]))
        groups.append(SliceGroup(dtype="F32", shape=shape, box=box, names="\n".join(sorted(names))))
    file = WrittenFile(
        name=f"rank-{rank:05d}-of-{of:05d}.safetensors",
        record=FileRecord(size_bytes=1, digest=f"{rank:032x}"),
        groups=tuple(groups),
    )
    return encode_report((file,))


def test_the_largest_model_over_a_thousand_ranks_is_committed_and_read(tmp_path: Path) -> None:
    """llama-405b and both moments: 3.5 million pieces, which a list for each took 283 MB for."""
    claimed = folder(tmp_path, 1, 0)
    claimed.claim()
    claimed.unfinished_folder(1).mkdir()
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, shape in our_shapes(MODEL_PRESETS["llama-405b"]).items():
        by_shape.setdefault(shape, []).extend(f"{kind}.{name}" for kind in KINDS)
    reports = [reported(rank, of=1024, by_shape=by_shape) for rank in range(1024)]
    assert max(map(len, reports)) < 64 << 10
    outcome = commit(
        claimed, files=claimed.begin(1), step=1, trainer={"cursor": 1}, reports=reports
    )
    assert isinstance(outcome, Committed), outcome
    body = read_manifest(claimed.committed(1), step=1, digest=outcome.digest)
    assert len(body) < 2 << 20
    manifest = Manifest.parse(body)
    assert manifest.tensors.keys() == {name for same in by_shape.values() for name in same}
    assert {len(record.pieces) for record in manifest.tensors.values()} == {1024}
    assert len({id(record.pieces) for record in manifest.tensors.values()}) == len(by_shape)
