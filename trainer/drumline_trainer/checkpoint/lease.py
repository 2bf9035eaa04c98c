"""Keep a lease that shows whether the owner of a place for checkpoints still trains there.

Rank 0 of the owner writes the lease every `BEAT_SECONDS`, each time with another number. A run that
wants the place watches the lease. A lease that changes is alive. A lease that stands still for
`EXPIRY_SECONDS` of the watcher's own clock has expired, so clocks of machines are never compared. A
watcher on the owner's machine asks for the owner's process instead and does not wait.

The lease needs no file lock, so it works on network file systems without flock, and in a bucket. It
survives a crash of its owner and then expires. It is advice: two runs that both own the place for a
moment are separated by `ownership`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from drumline_contract.regular_files import open_regular

BEAT_SECONDS: Final = 10.0
EXPIRY_SECONDS: Final = 60.0
"""Six beats: one that a slow network file system delays does not end a lease."""
MAX_LEASE_BYTES: Final = 4096
LEASE_FILE: Final = "lease.json"


class LeasePlace(Protocol):
    """A place that stores a lease."""

    def read(self) -> bytes | None:
        """Return the lease, None without one. Raises OSError."""
        ...

    def write(self, body: bytes) -> None:
        """Store the lease. Raises OSError."""
        ...

    def remove(self) -> None:
        """Remove the lease. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFile:
    """A lease in a folder.

    It is written in place: opening a file shows its newest content on NFS (close-to-open), while
    names in a folder are cached for a minute.
    """

    path: Path

    def read(self) -> bytes | None:
        """See `LeasePlace`."""
        with suppress(FileNotFoundError), open_regular(self.path) as file:
            return file.read(MAX_LEASE_BYTES)
        return None

    def write(self, body: bytes) -> None:
        """See `LeasePlace`."""
        # Another writer of the storage may have put a link or a pipe there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, 0o666)
        try:
            # Not truncated first: a reader would see an empty lease between both calls.
            os.pwrite(descriptor, body, 0)
            os.ftruncate(descriptor, len(body))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """See `LeasePlace`."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The process that renews a lease, as another process on its machine can find it."""

    machine: str
    """Host name, boot and PID namespace."""
    pid: int
    started: str
    """Start of the process in ticks since the boot: a reused pid has another one."""

    @classmethod
    def here(cls) -> Seat:
        """Return the seat of this process."""
        pid = os.getpid()
        return cls(machine=_machine(), pid=pid, started=_start_of(pid))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLease:
    """The content of a lease."""

    owner: str
    seat: Seat
    beat: int = 0

    def encode(self) -> bytes:
        """Return the lease as one line of JSON."""
        raw = {
            "owner": self.owner,
            "machine": self.seat.machine,
            "pid": self.seat.pid,
            "started": self.seat.started,
            "beat": self.beat,
        }
        return (json.dumps(raw) + "\n").encode()

    @classmethod
    def parse(cls, body: bytes) -> FolderLease | None:
        """Read `encode`. None for anything else, such as a lease that is half written."""
        try:
            raw = json.loads(body)
            seat = Seat(
                machine=str(raw["machine"]), pid=int(raw["pid"]), started=str(raw["started"])
            )
            return cls(owner=str(raw["owner"]), seat=seat, beat=int(raw["beat"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def is_alive(
    place: LeasePlace,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    here: Seat | None = None,
) -> bool:
    """Watch a lease until it changes or expires.

    Args:
        place: place of the lease.
        clock: seconds of this machine.
        sleep: waits, and may raise to end the watch.
        here: the seat of this process.

    Raises:
        OSError: the lease cannot be read.
    """
    first = place.read()
    if first is None:
        return False
    known = _runs_here(first, here=here or Seat.here())
    if known is not None:
        return known
    # Clocks of machines differ: only a change tells that another machine's owner lives.
    until = clock() + EXPIRY_SECONDS
    while clock() < until:
        sleep(1.0)
        now = place.read()
        if now is None:
            return False
        if now != first:
            return True
    return False


def _runs_here(body: bytes, *, here: Seat) -> bool | None:
    """Return whether another process here renews the lease. None: it is of another machine."""
    lease = FolderLease.parse(body)
    if lease is None or lease.seat.machine != here.machine:
        return None
    return lease.seat != here and _start_of(lease.seat.pid) == lease.seat.started != ""


@dataclass(slots=True, kw_only=True)
class LeaseKeeper:
    """Renews a lease in a thread until it is stopped."""

    place: LeasePlace
    owner: str
    _stopped: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Write the lease, and renew it from now on."""
        lease = FolderLease(owner=self.owner, seat=Seat.here())
        with suppress(OSError):  # an outage of the storage; the thread writes the lease later
            self.place.write(lease.encode())
        threading.Thread(target=self._renew, args=(lease,), name="lease", daemon=True).start()

    def stop(self) -> None:
        """Renew it no more: it expires."""
        self._stopped.set()

    def release(self) -> None:
        """Stop, and remove the lease: the next run does not have to wait."""
        self.stop()
        with suppress(OSError):
            self.place.remove()

    def _renew(self, lease: FolderLease) -> None:
        beat = lease.beat
        while not self._stopped.wait(BEAT_SECONDS):
            beat += 1
            body = FolderLease(owner=lease.owner, seat=lease.seat, beat=beat).encode()
            with suppress(OSError):  # an outage of the storage; the next beat tries again
                self.place.write(body)


def _machine() -> str:
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()} {boot} {namespace}"


def _start_of(pid: int) -> str:
    """Return field 22 of /proc/PID/stat; empty without such a process, or for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
