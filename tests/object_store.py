"""A real S3 server on loopback whose objects are files of a folder: versitygw.

It keeps what checkpoints in buckets rest on: conditional puts (under a lock of each object),
uploads in parts, ranges, listings. `python -m tests.cluster.binaries versitygw` builds it.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.binaries import ensure_binaries
from tests.cluster.ports import LOOPBACK, ReservedPorts

BUCKET = "checkpoints"
_START_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """A server that runs."""

    port: int
    folder: Path
    """Its buckets."""
    secret: str

    def environment(self, *, port: int | None = None) -> dict[str, str]:
        """What a client needs; with another port than its own there is something in between."""
        return {
            "AWS_ENDPOINT_URL": f"http://{LOOPBACK}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "key-of-the-tests",
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def objects(self, prefix: str) -> dict[str, Path]:
        """The files of all objects below a prefix, by their keys behind it."""
        top = self.folder / BUCKET / prefix
        return {str(file.relative_to(top)): file for file in top.rglob("*") if file.is_file()}


@contextmanager
def running(folder: Path) -> Generator[ObjectStore]:
    """The server, with one bucket; gone at the end."""
    program = ensure_binaries(["versitygw"], say=print)["versitygw"]
    top, sidecar = folder / "buckets", folder / "sidecar"
    (top / BUCKET).mkdir(parents=True)
    sidecar.mkdir()
    with ReservedPorts() as ports, (folder / "log").open("wb") as log:
        store = ObjectStore(port=ports.take(), folder=top, secret=secrets.token_hex(16))
        keys = store.environment()
        process = subprocess.Popen(
            # metadata in files: not every file system has extended attributes
            [
                *(program, "--quiet", "--port", f"{LOOPBACK}:{store.port}"),
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


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection((LOOPBACK, port), timeout=5).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"versitygw does not start:\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
