"""Checkpoints as a person names them on a command line: of a folder or of a bucket.

    checkpoints/step-00000080, s3://bucket/run/step-00000080    that step
    checkpoints, s3://bucket/run                                 the newest

Nothing is claimed and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from drumline_contract import BUCKET_SCHEMES
from drumline_trainer.checkpoint.bucket.index import PLACE
from drumline_trainer.checkpoint.bucket.storage import BucketStorage
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StorageError,
    is_storage_fault,
)
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.folder_files import FolderFiles
from drumline_trainer.checkpoint.manifest import MANIFEST_FILE, Manifest
from drumline_trainer.checkpoint.ownership import Owner
from drumline_trainer.checkpoint.restore import read_manifest
from drumline_trainer.checkpoint.shard_file import verify_chunks
from drumline_trainer.checkpoint.storage import CheckpointStorage, StepFiles

_STEP: Final = re.compile(r"step-(?P<step>[0-9]{8,18})")
_READER: Final = Owner(name="", membership=(0, 0))


def named_storage(place: str) -> CheckpointStorage:
    """Open all checkpoints of a run.

    Raises:
        CheckpointError: the place is a URL of no bucket, or no folder.
    """
    if place.startswith(BUCKET_SCHEMES):
        try:
            return BucketStorage.open(place, owner=_READER, claim="")
        except ValueError as error:
            raise CheckpointError(str(error)) from None
    if not Path(place).is_dir():
        raise CheckpointError("no such folder")
    return CheckpointFolder(path=Path(place), owner=_READER.name, membership=_READER.membership)


def named_checkpoint(place: str) -> StepFiles:
    """Open one committed checkpoint, not verified yet.

    Raises:
        CheckpointError: there is none.
    """
    if place.startswith(BUCKET_SCHEMES):
        above, _, name = place.rpartition("/")
        if PLACE.fullmatch(name):
            return named_storage(above).at(name)
        if step := _STEP.fullmatch(name):
            storage = named_storage(above)
            _steps(storage)
            return storage.committed(int(step["step"]))
    elif not _is_run(Path(place)):
        return FolderFiles(path=Path(place), committed_place=Path(place).name)
    storage = named_storage(place)
    return storage.committed(_steps(storage)[0])


def _steps(storage: CheckpointStorage) -> list[int]:
    """List the committed steps, newest first and at least one.

    Raises:
        CheckpointError: there is none, or the folder cannot be read.
        StorageError: the storage does not answer.
    """
    try:
        steps = storage.steps()
    except OSError as error:
        raise (StorageError if is_storage_fault(error) else CheckpointError)(str(error)) from None
    if not steps:
        raise CheckpointError("no checkpoint lies there")
    return steps


def _is_run(folder: Path) -> bool:
    """Return whether a folder contains checkpoints, rather than the files of one."""
    return not (folder / MANIFEST_FILE).exists() and any(
        _STEP.fullmatch(entry.name) for entry in (folder.iterdir() if folder.is_dir() else ())
    )


def list_checkpoints(place: str, *, verify: bool, write: Callable[[str], None]) -> None:
    """Write a line for each committed step, newest first.

    Args:
        place: place of a run.
        verify: read all files and compare their digests.
        write: receives the lines.

    Raises:
        CorruptCheckpointError: at least one is damaged; its line has the details.
        CheckpointError: the place cannot be read.
    """
    storage = named_storage(place)
    damaged: list[str] = []
    for step in _steps(storage):
        try:
            files = storage.committed(step)
            manifest = Manifest.parse(read_manifest(files, step=step))
            for name, record in manifest.files.items() if verify else ():
                verify_chunks(files.chunks(name, record), record, name=name)
        except CorruptCheckpointError as error:
            damaged.append(f"step {step}")
            write(f"step {step}  damaged: {error}")
            continue
        size = sum(record.size_bytes for record in manifest.files.values())
        write(
            f"step {step}  {size / 1e6:.1f} MB in {len(manifest.files)} files of"
            f" {manifest.world_size} ranks  {files.place}{'  intact' if verify else ''}"
        )
    if damaged:
        raise CorruptCheckpointError(f"damaged: {', '.join(damaged)}")
