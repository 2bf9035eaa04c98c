"""The exceptions of this package.

CheckpointError
├── CorruptCheckpointError    nothing on storage verifies, or only what is too old
├── SaveError                 a rank could not write its part; nothing was committed
│   ├── PeerSaveError         another rank than this one
│   └── StorageError          because the storage fails; it may work later
├── FolderInUseError          another job's folder: held, or with checkpoints of its own
└── StaleMembershipError      a newer membership of this job owns the folder
    └── FolderTakenError      another job has taken the folder over
"""

from __future__ import annotations

import errno
from typing import Final


class CheckpointError(RuntimeError):
    """Base of all errors of this package."""


class CorruptCheckpointError(CheckpointError):
    """Checkpoints exist and none may be used: a start from scratch would silently lose them."""


class SaveError(CheckpointError):
    """A checkpoint could not be written."""


class PeerSaveError(SaveError):
    """Another rank could not write or commit: this one has lost a peer, and is not to blame."""


class StorageError(SaveError):
    """The storage is full, over its quota or does not answer: nothing of the program's making."""


_STORAGE_ERRORS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT),
        *(errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH),
    }
)
"""Errors of a file system that is full or cannot reach its disks. Missing rights (EACCES) and wrong
paths are not among them, because only a person can fix those."""


def is_storage_fault(error: OSError) -> bool:
    """Return whether the error is the storage's fault and may end without a change of the job."""
    return error.errno in _STORAGE_ERRORS


class StaleMembershipError(CheckpointError):
    """This rank belongs to a membership that has been replaced; it must not commit anything."""


class FolderTakenError(StaleMembershipError):
    """Another job has taken the place over. This job ends, so that the place never alternates."""


class FolderInUseError(CheckpointError):
    """The place belongs to another job, which still trains there or whose checkpoints lie there."""
