"""Description of a client's snapshot in the form that agents exchange; pure."""

from __future__ import annotations

import re

from drumline_agent.protocol.snapshot_info import MAX_SNAPSHOT_BYTES, SnapshotInfo
from drumline_agent.rank_protocol.placement import Placement
from drumline_client.wire import SnapshotWritten

_DIGEST = re.compile(r"[0-9a-f]{64}")


def snapshot_info(
    message: SnapshotWritten, placement: Placement, *, rank: int, ranks_per_process: int = 1
) -> SnapshotInfo | None:
    """Describe a snapshot that a rank has written. None: the message is implausible.

    Args:
        message: of the rank's client.
        placement: of its process, or of the launcher that started it.
        rank: that wrote the snapshot.
        ranks_per_process: number of ranks that a launcher starts.
    """
    fits = message.step >= 0 and 0 < message.bytes <= MAX_SNAPSHOT_BYTES
    if not fits or not _DIGEST.fullmatch(message.sha256):
        return None
    return SnapshotInfo(
        rank=rank,
        step=message.step,
        generation=placement.generation,
        attempt=placement.attempt,
        world_size=placement.world_size * ranks_per_process,
        bytes=message.bytes,
        sha256=message.sha256,
    )
