"""Files of a claim, for the other end of a copy. It runs in a pod: Python 3.7, nothing of ours.

`list FOLDER`            a JSON line for each file: path, size, seconds of its last change
`digest FILE SIZE`       size of FILE, at most SIZE, and the SHA-256 of these bytes
`part FILE SIZE`         the same of FILE.drumline-part
`receive FILE OFFSET`    appends standard input to FILE.drumline-part, cut to OFFSET before
`finish FILE SIZE TIME`  FILE.drumline-part becomes FILE, if it has this size
`send FILE OFFSET`       writes the file from OFFSET to standard output
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

PART = ".drumline-part"
CHUNK = 1 << 20


def list_files(top: Path) -> None:
    """Print each regular file below a folder, or the file itself. Links are left out."""
    if top.is_file():
        show("", top)
    elif top.is_dir():
        for path in sorted(top.rglob("*")):
            if path.is_file() and not path.is_symlink() and not path.name.endswith(PART):
                show(path.relative_to(top).as_posix(), path)


def show(name: str, path: Path) -> None:
    """Print one file."""
    state = path.stat()
    answer(path=name, size=state.st_size, changed=int(state.st_mtime))


def part(path: Path, most: int) -> None:
    """Print how much of a file has arrived, and its digest."""
    digest(partial(path), most)


def digest(path: Path, most: int) -> None:
    """Print how much of a file there is, and its digest."""
    sha256, size = hashlib.sha256(), 0
    if path.is_file():
        with path.open("rb") as file:
            while size < most:
                data = file.read(min(CHUNK, most - size))
                if not data:
                    break
                sha256.update(data)
                size += len(data)
    answer(size=size, sha256=sha256.hexdigest())


def receive(path: Path, offset: int) -> None:
    """Append standard input."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial(path).open("ab") as file:
        file.truncate(offset)
        while True:
            data = os.read(sys.stdin.fileno(), CHUNK)
            if not data:
                break
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def finish(path: Path, size: int, changed: int) -> None:
    """Rename the partial file to its final name if it is complete.

    Args:
        path: name of the file.
        size: number of bytes that it must have.
        changed: modification time, Unix seconds.
    """
    have = partial(path).stat().st_size
    if have != size:
        sys.exit(f"{path} has {have} of {size} bytes")
    os.utime(str(partial(path)), (changed, changed))
    partial(path).replace(path)


def send(path: Path, offset: int) -> None:
    """Write the rest of a file."""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            data = file.read(CHUNK)
            if not data:
                break
            sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def partial(path: Path) -> Path:
    """Return the name of a file that is not complete."""
    return path.with_name(path.name + PART)


def answer(**fields: object) -> None:
    """Print an answer."""
    sys.stdout.write(json.dumps(fields) + "\n")


VERBS = {
    "list": list_files,
    "digest": digest,
    "part": part,
    "receive": receive,
    "finish": finish,
    "send": send,
}

if __name__ == "__main__":
    try:
        VERBS[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))
    except OSError as error:
        sys.exit(f"{error.filename or 'standard output'}: {error.strerror}")
