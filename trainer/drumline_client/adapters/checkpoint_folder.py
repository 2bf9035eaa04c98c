"""Find the newest complete checkpoint in a folder whose names contain the step."""

from __future__ import annotations

import re
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, Callable, Final

SEEN_SECONDS: Final = 60.0
"""Time until a file server shows a folder to every node. NFS caches listings for up to 60 s."""
_POLL_SECONDS: Final = 0.5
_CALLS: Final = count()


def newest_whole(
    folder: Path, pattern: str, *, is_whole: Callable[[Path], bool]
) -> tuple[int, Path] | None:
    """Return step and path of the newest complete entry with such a name, or None.

    Args:
        folder: folder, which need not exist.
        pattern: pattern of the whole name. Its first group is the step.
        is_whole: returns False for a checkpoint whose rank died while writing.
    """
    entries = list(folder.iterdir()) if folder.is_dir() else []
    matches = ((re.fullmatch(pattern, entry.name), entry) for entry in entries)
    steps = sorted(((int(match[1]), entry) for match, entry in matches if match), reverse=True)
    return next(((step, entry) for step, entry in steps if is_whole(entry)), None)


def agreed_newest(
    folder: Path,
    pattern: str,
    *,
    is_whole: Callable[[Path], bool],
    wait_seconds: float = SEEN_SECONDS,
) -> tuple[int, Path] | None:
    """Return what `newest_whole` returns on rank 0, on every rank of torch's process group.

    Ranks that resume from different checkpoints train different models, and nothing fails.

    Args:
        folder: as above.
        pattern: as above.
        is_whole: as above.
        wait_seconds: time until this rank must see the checkpoint.

    Raises:
        FileNotFoundError: this rank does not see it. The folder is not shared.
    """
    torch_distributed: Any = sys.modules.get("torch.distributed")
    group = torch_distributed if torch_distributed and torch_distributed.is_available() else None
    if group is None or not group.is_initialized() or group.get_world_size() == 1:
        return newest_whole(folder, pattern, is_whole=is_whole)
    # The store of the group needs no device, unlike a collective.
    store = group.distributed_c10d._get_default_store()  # noqa: SLF001 - no public name
    key = f"drumline/newest/{next(_CALLS)}"
    if group.get_rank() == 0:
        newest = newest_whole(folder, pattern, is_whole=is_whole)
        store.set(key, "" if newest is None else newest[1].name)
        return newest
    match = re.fullmatch(pattern, store.get(key).decode())
    if match is None:
        return None
    path = folder / match[0]
    if not _is_seen(path, is_whole=is_whole, seconds=wait_seconds):
        raise FileNotFoundError(
            f"{path}: rank 0 resumes from it, and rank {group.get_rank()} does not see it; all"
            " ranks must share this folder"
        )
    return int(match[1]), path


def _is_seen(path: Path, *, is_whole: Callable[[Path], bool], seconds: float) -> bool:
    """Wait until a checkpoint is there. False: the time is over."""
    deadline = time.monotonic() + seconds
    while not is_whole(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
        # A new listing refreshes what the client of a file server has cached.
        newest_whole(path.parent, "", is_whole=is_whole)
    return True
