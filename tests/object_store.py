"""A real S3 server whose objects are files of a folder, on loopback unless said: versitygw.

It keeps what checkpoints in buckets rest on: conditional puts (under a lock of each object),
uploads in parts, ranges, listings. `python -m tools.cluster.binaries versitygw` builds it.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.binaries import ensure_binaries
from tools.cluster.ports import LOOPBACK, ReservedPorts

BUCKET = "checkpoints"
_START_SECONDS = 120.0
_LISTEN = "0A"
"""A state, as the kernel writes it."""


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """A server that runs."""

    port: int
    folder: Path
    """Its buckets."""
    secret: str
    address: str = LOOPBACK
    key: str = "key-of-the-tests"

    def environment(self, *, port: int | None = None) -> dict[str, str]:
        """What a client needs; with another port than its own there is something in between."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def objects(self, prefix: str) -> dict[str, Path]:
        """The files of all objects below a prefix, by their keys behind it."""
        top = self.folder / BUCKET / prefix
        return {str(file.relative_to(top)): file for file in top.rglob("*") if file.is_file()}


@contextmanager
def running(
    folder: Path, *, address: str = LOOPBACK, entering: Sequence[str] = ()
) -> Generator[ObjectStore]:
    """The server, with one bucket; gone at the end.

    Args:
        folder: for objects, users and a log.
        address: where it listens.
        entering: a command in front of its own, such as one that enters another network.
    """
    program = store_program()
    top, sidecar = folder / "buckets", folder / "sidecar"
    (top / BUCKET).mkdir(parents=True)
    sidecar.mkdir()
    users = folder / "users"
    users.mkdir()
    with ReservedPorts() as ports, (folder / "log").open("wb") as log:
        port, secret = ports.take(), secrets.token_hex(16)
        store = ObjectStore(port=port, folder=top, secret=secret, address=address)
        keys = store.environment()
        process = subprocess.Popen(
            # metadata in files: not every file system has extended attributes
            [
                *(*entering, program, "--quiet", "--port", f"{address}:{store.port}"),
                *("--iam-dir", str(users)),
                *("posix", "--sidecar", str(sidecar), str(top)),
            ],
            env={
                "ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
                "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(store.port, process, folder / "log")
            yield store
        finally:
            process.kill()
            process.wait()


def store_program() -> Path:
    """The server and its commands for administrators; built where it is not there."""
    return ensure_binaries(["versitygw"], say=print)["versitygw"]


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _listens(port, process.pid):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"versitygw does not start:\n{log.read_text()}")
        time.sleep(0.05)


def _listens(port: int, pid: int) -> bool:
    """Whether somebody does in the network of that process, which may be another than ours."""
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    rows = (line.split() for line in lines)
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTEN for row in rows)
