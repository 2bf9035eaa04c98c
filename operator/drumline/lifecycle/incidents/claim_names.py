"""Name the claim in an error about a folder that is full: agents know folders, the spec claims."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from drumline.lifecycle.model.job import CHECKPOINT_FOLDER, DATA_FOLDER
from drumline_api.trainingjob import TrainingJobSpec

_ERROR: Final = re.compile(
    r"((?:No space left|Disk quota exceeded|Read-only file system) on )(/[^\s,;:'\"()]*+|device\b)"
    r"(?! \(claim)"
)
_PATH: Final = re.compile(r"(?<![\w./])/[\w./+@-]{1,256}")


def with_claim_names(text: str, spec: TrainingJobSpec) -> str:
    """Return the text with the claim behind each folder that it says is full.

    Example: `No space left on /checkpoints` -> `No space left on /checkpoints (claim runs)`. An
    error of the bundled trainer without a folder is about the checkpoints that it writes.
    """
    mounts = dict(_mounts(spec))

    def named(match: re.Match[str]) -> str:
        folder = match[2]
        if folder == "device":
            paths = [path for path in _PATH.findall(text) if _mount(path, mounts) is not None]
            default = CHECKPOINT_FOLDER if spec.trainer is not None else None
            folder = next((_mount(path, mounts) for path in paths), None) or default or ""
            if folder not in mounts:
                return match[0]
        mount = _mount(folder, mounts)
        return match[0] if mount is None else f"{match[1]}{folder} (claim {mounts[mount]})"

    return _ERROR.sub(named, text)


def _mount(path: str, mounts: dict[str, str]) -> str | None:
    """Return the longest mount point that a path is below."""
    under = [mount for mount in mounts if path == mount or path.startswith(f"{mount}/")]
    return max(under, key=len, default=None)


def _mounts(spec: TrainingJobSpec) -> Iterator[tuple[str, str]]:
    """Yield the mount points of claims, and the names of the claims."""
    if spec.checkpoint is not None and spec.checkpoint.claim_name is not None:
        yield CHECKPOINT_FOLDER, spec.checkpoint.claim_name
    if spec.trainer is not None and spec.trainer.data is not None:
        yield DATA_FOLDER, spec.trainer.data.claim_name
    template = spec.template
    if template is None:
        return
    claims = {
        volume.name: volume.persistent_volume_claim.claim_name
        for volume in template.volumes or ()
        if volume.persistent_volume_claim is not None
    }
    for mount in template.volume_mounts or ():
        if mount.name in claims:
            yield mount.mount_path.rstrip("/"), claims[mount.name]
