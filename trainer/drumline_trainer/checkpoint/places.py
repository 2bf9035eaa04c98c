"""Which storage a placement's checkpoints lie on."""

from __future__ import annotations

from drumline_trainer.checkpoint.bucket.storage import BucketStorage
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.ownership import Owner
from drumline_trainer.checkpoint.storage import CheckpointStorage
from drumline_trainer.rank_protocol.placement import Placement


def open_storage(placement: Placement, *, owner: Owner, claim: str = "") -> CheckpointStorage:
    """The storage, not claimed yet.

    Args:
        placement: has checkpoints.
        owner: who saves there.
        claim: a name of this claim alone; empty for who only reads.

    Raises:
        CheckpointError: a bucket that cannot be opened.
    """
    if placement.checkpoint_bucket is not None:
        return BucketStorage.open(placement.checkpoint_bucket, owner=owner, claim=claim)
    assert placement.checkpoint_folder is not None  # noqa: S101 - it has checkpoints
    return CheckpointFolder(
        path=placement.checkpoint_folder, owner=owner.name, membership=owner.membership
    )
