"""The commit of a checkpoint: rank 0 writes the manifest once all ranks have written their files.

Nothing is visible under the step's name before the one atomic act of `CheckpointStorage.commit`. A
rank that cannot write says so in its report, so the other ranks leave with its reason instead of
waiting for it. The caller carries messages between ranks: `RankWriter.write` makes the report of a
rank, `commit` makes an outcome of all reports, and `encode` and `decode` carry the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from drumline_trainer.checkpoint.errors import (
    FolderTakenError,
    SaveError,
    StorageError,
    is_storage_fault,
)
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    FileRecord,
    Manifest,
    TensorRecord,
    digest_line,
    digest_of,
)
from drumline_trainer.checkpoint.rank_report import WriteFailed, WrittenFile, decode_report
from drumline_trainer.checkpoint.storage import CheckpointStorage, StepFiles
from drumline_trainer.checkpoint.tensor_table import TensorTable


@dataclass(frozen=True, slots=True)
class Committed:
    """The checkpoint is visible under its step."""

    digest: str
    """Digest of its manifest."""
    size_bytes: int
    """Bytes of all shard files together."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another membership or another job owns the storage, so the commit was refused."""

    reason: str
    by_another_job: bool = False


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The storage is full or does not answer, so the commit failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """Some ranks could not write, so the commit was not tried."""

    reason: str
    ranks: tuple[int, ...]
    """The failed ranks. Rank 0 if all ranks have written and it could not commit."""


CommitOutcome = Committed | NotCommitted | StorageFailed | Superseded


def commit(
    storage: CheckpointStorage,
    *,
    files: StepFiles,
    step: int,
    trainer: Mapping[str, Any],
    reports: Sequence[bytes],
) -> CommitOutcome:
    """Write the manifest and make the step known; on rank 0, for all ranks.

    Args:
        storage: claimed by this membership.
        files: files that all ranks have written.
        step: finished optimizer steps; names the checkpoint.
        trainer: JSON values of the trainer's own state.
        reports: reports of all ranks.

    Raises:
        SaveError: a rank could not write, or the manifest is too large.
    """
    # 1. A failed rank makes the whole checkpoint fail, before anything is visible.
    decoded = [decode_report(report) for report in reports]
    failed = {rank: each for rank, each in enumerate(decoded) if isinstance(each, WriteFailed)}
    try:
        _raise_any(failed.values())
        written = (each for each in decoded if not isinstance(each, WriteFailed))
        # 2. Build the manifest from the reports.
        records, tensors = _collected(written)
        manifest = Manifest(
            step=step,
            world_size=len(reports),
            generation=storage.membership[0],
            attempt=storage.membership[1],
            files=records,
            tensors=tensors,
            trainer=trainer,
        )
        # What could not be restored must not be committed.
        manifest.verify()
        body = manifest.encode()
        if len(body) > MAX_MANIFEST_BYTES:
            raise SaveError(
                f"the manifest of {len(body)} bytes is over {MAX_MANIFEST_BYTES}, the most that a"
                " restore reads; train with fewer ranks or larger shards"
            )
        # 3. Write the manifest last, then make the step visible in one atomic act.
        files.write_small({MANIFEST_FILE: body, MANIFEST_DIGEST_FILE: digest_line(body)})
        storage.commit(step, files=files)
    except (RuntimeError, OSError) as error:
        storage.discard(files)
        # a new owner removes what this membership writes: then that is the cause of the error
        stale = storage.ownership_error()
        if stale is not None:
            return Superseded(str(stale), isinstance(stale, FolderTakenError))
        by_storage = isinstance(error, OSError) and is_storage_fault(error)
        if by_storage or isinstance(error, StorageError):
            return StorageFailed(str(error))
        return NotCommitted(str(error), ranks=tuple(failed) or (0,))
    return Committed(digest=digest_of(body), size_bytes=manifest.size_bytes)


def encode(outcome: CommitOutcome) -> bytes:
    """Encode an outcome for the other ranks."""
    match outcome:
        case Committed(digest, size_bytes):
            fields: dict[str, Any] = {"digest": digest, "bytes": size_bytes}
        case NotCommitted(reason, ranks):
            fields = {"error": reason, "ranks": ranks}
        case StorageFailed(reason):
            fields = {"storage": reason}
        case Superseded(reason, by_another_job):
            fields = {"stale": reason, "by_another_job": by_another_job}
    return json.dumps(fields).encode()


def decode(encoded: bytes) -> CommitOutcome:
    """Decode an outcome.

    Raises:
        TypeError: the bytes are not an encoded outcome.
    """
    match json.loads(encoded):
        case {"digest": str(digest), "bytes": int(size_bytes)}:
            return Committed(digest=digest, size_bytes=size_bytes)
        case {"stale": str(reason), "by_another_job": bool(by_another_job)}:
            return Superseded(reason, by_another_job)
        case {"storage": str(reason)}:
            return StorageFailed(reason)
        case {"error": str(reason), "ranks": [*ranks]}:
            return NotCommitted(reason, ranks=tuple(map(int, cast("list[int]", ranks))))
        case message:
            raise TypeError(f"not an outcome of a commit: {message!r}")


def _raise_any(failed: Iterable[WriteFailed]) -> None:
    """Raise the failures of ranks as one error, if there are any.

    Raises:
        StorageError: at least one is the storage's fault.
        SaveError: another failure.
    """
    failures = list(failed)
    if failures:
        # Storage first: it may come back, so the gang waits instead of counting restarts.
        by_storage = any(failure.by_storage for failure in failures)
        reasons = "; ".join(failure.reason for failure in failures)
        raise (StorageError if by_storage else SaveError)(reasons)


def _collected(
    reports: Iterable[Sequence[WrittenFile]],
) -> tuple[dict[str, FileRecord], dict[str, TensorRecord]]:
    """Merge the files and tensors of all ranks.

    Raises:
        SaveError: ranks disagree on a tensor.
    """
    files: dict[str, FileRecord] = {}
    table = TensorTable()
    for written in reports:
        files |= {file.name: file.record for file in written}
        table.add(written)
    return files, table.records()
