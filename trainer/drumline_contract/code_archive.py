"""A user's code on its way into the pods of a job: a packed folder in parts of a few ConfigMaps.

The packed folder is a gzipped ustar archive of regular files and relative symbolic links, and its
digest is that of the packed bytes: what is unpacked has been compared with it first.
"""

from __future__ import annotations

import hashlib
from typing import Final

CODE_FOLDER: Final = "/code"
"""Folder of the code in the pod, and working directory of the command."""
CODE_PARTS_FOLDER: Final = "/var/run/drumline/code"
"""Folder in the init container with the parts, as files `0`, `1`, ..."""
CODE_PART_KEY: Final = "part"
"""The key of each ConfigMap."""
MAX_CODE_PART_BYTES: Final = 800_000
"""Maximum size of one part. A ConfigMap can hold 1 MiB."""
MAX_CODE_PARTS: Final = 5
MAX_CODE_BYTES: Final = MAX_CODE_PARTS * MAX_CODE_PART_BYTES
"""Maximum size of the packed folder. It is stored in etcd, and every pod of a gang reads it."""
MAX_UNPACKED_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of the unpacked archive. The init container holds it in its 128 MiB of memory."""
MAX_CODE_FILES: Final = 10_000


def code_digest(packed: bytes) -> str:
    """Return the digest of a packed folder: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(packed).hexdigest()}"


def link_stays_inside(path: str, target: str) -> bool:
    """Return whether a symbolic link of the folder points into the folder.

    A link may go up only at its beginning. The folders above the link are real, so these steps are
    known. Its remaining steps only descend, perhaps through another link that was checked the same
    way. `a/b/../..` is rejected, because b may be a link that leads to another place.

    Args:
        path: path of the link, relative to the folder.
        target: the link's content.
    """
    steps = target.split("/")
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    return up <= path.count("/") and all(step not in {"", ".."} for step in steps[up:])
