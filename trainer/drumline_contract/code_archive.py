"""A user's code on its way into the pods of a job: a packed folder in parts of a few ConfigMaps.

The packed folder is a gzipped ustar archive of regular files and relative symbolic links, and its
digest is that of the packed bytes: what is unpacked has been compared with it first.
"""

from __future__ import annotations

import hashlib
from typing import Final

CODE_FOLDER: Final = "/code"
"""Where the code is in the pod; the command starts there."""
CODE_PARTS_FOLDER: Final = "/var/run/drumline/code"
"""Where the init container has the parts, as files `0`, `1`, ..."""
CODE_PART_KEY: Final = "part"
"""The key of each ConfigMap."""
MAX_CODE_PART_BYTES: Final = 800_000
"""Of one ConfigMap, which may hold 1 MiB."""
MAX_CODE_PARTS: Final = 5
MAX_CODE_BYTES: Final = MAX_CODE_PARTS * MAX_CODE_PART_BYTES
"""Of the packed folder: etcd is no store for data, and every pod of a gang reads it."""
MAX_UNPACKED_BYTES: Final = 32 * 1024 * 1024
"""Of the archive unpacked: the init container holds it in its 128 MiB of memory."""
MAX_CODE_FILES: Final = 10_000


def code_digest(packed: bytes) -> str:
    """The digest of a packed folder: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(packed).hexdigest()}"


def link_stays_inside(path: str, target: str) -> bool:
    """Whether a symbolic link of the folder leads to a place of the folder.

    A link leads up only at its beginning. The folders above it are real, so these steps are known;
    from there on it only descends, perhaps through another link of which the same holds.
    `a/b/../..` is refused: where b is a link, that leads elsewhere than it looks.

    Args:
        path: of the link, relative to the folder.
        target: what it says.
    """
    steps = target.split("/")
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    return up <= path.count("/") and all(step not in {"", ".."} for step in steps[up:])
