"""The exceptions of this package.

CheckpointError
├── CorruptCheckpointError    nothing on storage verifies, or only what is too old
├── SaveError                 a rank could not write its part; nothing was committed
└── StaleMembershipError      a newer membership or another job owns the folder
"""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """Base of all errors of this package."""


class CorruptCheckpointError(CheckpointError):
    """Checkpoints exist and none may be used: a start from scratch would silently lose them."""


class SaveError(CheckpointError):
    """A checkpoint could not be written."""


class StaleMembershipError(CheckpointError):
    """This rank belongs to a membership that has been replaced; it must not commit anything."""
