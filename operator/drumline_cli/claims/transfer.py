"""Copy files through a program at the other end, and continue where an earlier copy was cut off.

A file arrives under another name and gets its own once it is complete. A file with the same size
and time of change at the other end is skipped. The first part of a file is kept if its digest is
that of the source.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, BinaryIO, Final, cast

from drumline_cli.columns import gib
from drumline_cli.errors import BadInput, NotAnswered
from drumline_contract import plain

PART: Final = ".drumline-part"
_CHUNK: Final = 1 << 20
_TRIES: Final = 5
"""Attempts for a file. An attempt after which more of it is there does not count."""
_BETWEEN_SECONDS: Final = 1.0
"""Seconds between two lines of progress where no terminal shows them."""
_MAX_LISTING: Final = 1 << 28
_MAX_TIME: Final = 1 << 33
"""Seconds since the epoch, after which file systems have no time."""

Run = Callable[[Sequence[str]], Sequence[str]]
"""The command line that runs the remote program with these arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    """A file of a copy.

    Attributes:
        path: relative to the source; empty: the source is this file.
        size: bytes.
        changed: seconds since the epoch.
    """

    path: str
    size: int
    changed: int


class CopyProgress:
    """Lines on standard error: one that is rewritten on a terminal, one per second elsewhere."""

    def __init__(self, *, total: int, verb: str) -> None:
        self._total = total
        self._verb = verb
        self._done = 0
        self._base = 0
        self._moved = 0
        self._began = time.monotonic()
        self._shown = 0.0
        self._terminal = sys.stderr.isatty()

    # Progress is absolute per file. A retried file can move backwards without losing the total.
    def begin(self) -> None:
        """Begin a file: positions count from what is complete now."""
        self._base = self._done

    def at(self, position: int, *, moved: int = 0) -> None:
        """Show a position in the file. `moved` bytes came through the network for it."""
        self._done = self._base + position
        self._moved += moved
        now = time.monotonic()
        # A terminal line may change five times a second. A log must not grow that fast.
        if now - self._shown >= (0.2 if self._terminal else _BETWEEN_SECONDS):
            self._shown = now
            self._show(end="\r" if self._terminal else "\n")

    def end(self) -> None:
        """Show the last line."""
        self._show(end="\n")

    def _show(self, *, end: str) -> None:
        # A very short copy must not divide by zero.
        seconds = max(time.monotonic() - self._began, 1e-3)
        # The rate counts network bytes only. Skipped files would make it look too fast. The first
        # small files do not show the rate of the connection.
        rate = self._moved / seconds if self._moved >= _CHUNK else 0.0
        left = (self._total - self._done) / rate if rate else 0.0
        percent = 100 if not self._total else int(100 * self._done / self._total)
        text = f"{self._verb} {gib(self._done)} of {gib(self._total)} ({percent} %)"
        if self._done < self._total and rate:
            text += f", {gib(rate)}/s, {left:.0f} s left"
        # Padding overwrites the rest of a longer line before it.
        sys.stderr.write(f"{text:<72}{end}")
        sys.stderr.flush()


def upload(source: Path, target: str, run: Run) -> int:
    """Copy a file or a folder of this machine. Returns the number of bytes that were moved.

    Args:
        source: the file or folder.
        target: the path at the other end.
        run: runs the remote program.

    Raises:
        BadInput: the source cannot be read.
        NotAnswered: the other end failed.
    """
    # Phase 1: list both sides, to know the total and to skip complete files.
    files = list(local_files(source))
    there = {each.path: each for each in listed(target, run)}
    # One file into an existing folder keeps its name, as `cp` does.
    if source.is_file() and any(there):
        target += f"/{source.name}"
        same = there.get(source.name)
        there = {} if same is None else {"": replace(same, path="")}
    progress = CopyProgress(total=sum(each.size for each in files), verb="sent")
    moved = 0
    # Phase 2: send what differs. Equal size and time means equal content, as in rsync.
    for each in files:
        progress.begin()
        if there.get(each.path) == each:
            progress.at(each.size)
            continue
        path = f"{target}/{each.path}" if each.path else target
        moved += _sent(source / each.path if each.path else source, path, each, run, progress)
    progress.end()
    return moved


def download(source: str, target: Path, run: Run) -> int:
    """Copy a file or a folder to this machine. Returns the number of bytes that were moved.

    Args:
        source: the path at the other end.
        target: the file or folder here.
        run: runs the remote program.

    Raises:
        BadInput: the target cannot be written.
        NotAnswered: the source does not exist, or the other end failed.
    """
    files = listed(source, run)
    # An empty folder cannot be told from a missing one: the listing has files only.
    if not files:
        raise NotAnswered(f"{plain(source)} does not exist or has no files")
    # One file into an existing folder keeps its name, as `cp` does.
    if target.is_dir() and [each.path for each in files] == [""]:
        target /= PurePosixPath(source).name
    progress = CopyProgress(total=sum(each.size for each in files), verb="received")
    moved = 0
    for each in files:
        path = f"{source}/{each.path}" if each.path else source
        here = target / each.path if each.path else target
        progress.begin()
        # Size and time of change decide here too, so a second run is quick.
        if _state(here) == (each.size, each.changed):
            progress.at(each.size)
            continue
        moved += _received(path, here, each, run, progress)
    progress.end()
    return moved


def local_files(source: Path) -> Iterator[CopiedFile]:
    """Yield the regular files of a folder, or the file itself. Links are left out.

    Raises:
        BadInput: the file or folder does not exist.
    """
    try:
        # A path of the user may be a link. Links inside the folder are skipped.
        if source.is_file():
            state = source.stat()
            yield CopiedFile(path="", size=state.st_size, changed=int(state.st_mtime))
            return
        if not source.is_dir():
            raise BadInput(f"{source}: no such file or folder")
        # Sorted order makes progress and errors reproducible.
        for path in sorted(source.rglob("*")):
            # Part files of an interrupted download are not data.
            if path.is_file() and not path.is_symlink() and not path.name.endswith(PART):
                state = path.stat()
                name = path.relative_to(source).as_posix()
                yield CopiedFile(path=name, size=state.st_size, changed=int(state.st_mtime))
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}") from None


def listed(path: str, run: Run) -> list[CopiedFile]:
    """Return the files at the other end.

    Raises:
        NotAnswered: it failed, or it names a file outside the folder.
    """
    files: list[CopiedFile] = []
    for line in _asked(run(["list", path])).splitlines():
        with _readable():
            entry = cast("dict[str, Any]", json.loads(line))
            name, size, changed = str(entry["path"]), int(entry["size"]), int(entry["changed"])
        # The pod is not trusted. A path with `..` could overwrite files of the user.
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise NotAnswered(f"the pod names a file outside of the folder: {plain(name)}")
        if "\0" in name or size < 0 or not 0 <= changed < _MAX_TIME:
            raise NotAnswered(f"the pod names a file that cannot exist: {plain(name)}")
        files.append(CopiedFile(path=name, size=size, changed=changed))
    return files


def _sent(source: Path, path: str, file: CopiedFile, run: Run, progress: CopyProgress) -> int:
    """Send one file; returns the bytes that were moved."""
    moved = fruitless = 0
    last = -1
    # Each round: find the common part, send the rest, then check the whole file.
    while True:
        there = _digest(run(["part", path, str(file.size)]))
        # Different digests mean that the source changed. Then nothing of the old copy is usable.
        offset = there[0] if there == _digest_here(source, there[0]) else 0
        # Progress resets the counter, so a large file survives many short connections.
        fruitless = 0 if offset > last else fruitless + 1
        last = offset
        progress.at(offset)
        try:
            with source.open("rb") as opened:
                opened.seek(offset)
                count = _piped(opened, run(["receive", path, str(offset)]), progress, at=offset)
        except OSError as error:
            raise BadInput(f"{source}: {error.strerror}") from None
        moved += count
        # `finish` renames the file only if its size is complete.
        finish = run(["finish", path, str(file.size), str(file.changed)])
        answer = _answer(finish)
        if answer.code == 0:
            progress.at(file.size)
            return moved
        # Attempts without new bytes are limited. Otherwise a full disk would retry forever.
        if fruitless >= _TRIES:
            raise NotAnswered(_last_line(answer.error))
        # Linear back-off, because kubectl needs a new connection for each attempt.
        time.sleep(fruitless)


def _piped(source: BinaryIO, command: Sequence[str], progress: CopyProgress, *, at: int) -> int:
    """Write the rest of a file into a program; returns the bytes that it took."""
    count = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        pipe = cast("BinaryIO", process.stdin)
        # A connection may break: the remote side then reports how many bytes have arrived.
        with suppress(BrokenPipeError):
            while data := source.read(_CHUNK):
                pipe.write(data)
                count += len(data)
                progress.at(at + count, moved=len(data))
        # Closing flushes the last bytes, so it can fail in the same way.
        with suppress(BrokenPipeError):
            pipe.close()
    return count


def _received(path: str, here: Path, file: CopiedFile, run: Run, progress: CopyProgress) -> int:
    """Receive one file; returns the bytes that were moved."""
    part = here.with_name(here.name + PART)
    moved = fruitless = 0
    try:
        # Each round checks the part that exists, appends to it, and renames it when complete.
        here.parent.mkdir(parents=True, exist_ok=True)
        while True:
            offset = min(part.stat().st_size, file.size) if part.exists() else 0
            # The remote digest detects a source that changed since the last attempt.
            if offset and _digest(run(["digest", path, str(offset)])) != _digest_here(part, offset):
                offset = 0
            progress.at(offset)
            # Append mode and truncate keep the verified part and drop the rest.
            with part.open("ab") as opened:
                opened.truncate(offset)
                command = run(["send", path, str(offset)])
                count = _taken(command, opened, progress, at=offset, size=file.size)
            moved += count
            # The time of change is set before the rename, so a complete file is always recognized.
            if part.stat().st_size == file.size:
                os.utime(part, (file.changed, file.changed))
                part.replace(here)
                return moved
            fruitless = 0 if count else fruitless + 1
            if fruitless >= _TRIES:
                raise NotAnswered(f"{plain(path)}: the connection to the pod breaks repeatedly")
            time.sleep(fruitless)
    except OSError as error:
        raise BadInput(f"{error.filename or here}: {error.strerror}") from None


def _taken(
    command: Sequence[str], target: BinaryIO, progress: CopyProgress, *, at: int, size: int
) -> int:
    """Write the output of a program into a file, up to a size; returns its bytes.

    Args:
        command: writes the file from `at` on.
        target: takes the bytes.
        progress: shows them.
        at: bytes that the file has.
        size: bytes of the whole file. A file that grows, or a pod that never ends, is cut there.
    """
    count = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        pipe = cast("BufferedReader", process.stdout)
        # `read1` returns what arrived. `read` would wait for a full chunk and delay progress.
        while data := pipe.read1(min(_CHUNK, size - at - count)):
            target.write(data)
            count += len(data)
            progress.at(at + count, moved=len(data))
        process.kill()
    return count


def _digest(command: Sequence[str]) -> tuple[int, str]:
    """Return the size and the digest that the program in the pod reports."""
    answer = _asked(command)
    with _readable():
        there = json.loads(answer)
        return int(there["size"]), str(there["sha256"])


def _digest_here(file: Path, size: int) -> tuple[int, str]:
    """Return how many of the first `size` bytes a file has, and their digest."""
    digest, have = hashlib.sha256(), 0
    with file.open("rb") as opened:
        # Read in chunks, because a checkpoint file may exceed the memory of this machine.
        while have < size and (data := opened.read(min(_CHUNK, size - have))):
            digest.update(data)
            have += len(data)
    return have, digest.hexdigest()


def _asked(command: Sequence[str]) -> str:
    """Run a short remote command and return its output. Repeat it if no answer comes.

    Raises:
        NotAnswered: it fails.
    """
    error = b""
    # These questions change nothing, so a retry is safe.
    for attempt in range(_TRIES):
        done = _answer(command)
        if done.code == 0:
            return done.output.decode(errors="replace")
        error = done.error
        time.sleep(attempt)
    raise NotAnswered(_last_line(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The output of a short remote command, and its exit code."""

    code: int
    output: bytes
    error: bytes


def _answer(command: Sequence[str]) -> _Answer:
    """Run a short remote command. Its output is bounded, since the pod is not trusted.

    Raises:
        NotAnswered: it writes without an end.
    """
    kept: deque[bytes] = deque(maxlen=1)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        said = cast("BufferedReader", process.stderr)
        # A full pipe of errors would stop the program. The last part of them is the cause.
        reader = Thread(target=lambda: kept.extend(iter(lambda: said.read(_CHUNK), b"")))
        reader.start()
        output = cast("BufferedReader", process.stdout).read(_MAX_LISTING + 1)
        if len(output) > _MAX_LISTING:
            process.kill()
        reader.join()
    if len(output) > _MAX_LISTING:
        raise NotAnswered(f"the pod answers with more than {_MAX_LISTING} bytes")
    return _Answer(code=process.returncode, output=output, error=b"".join(kept))


@contextmanager
def _readable() -> Generator[None]:
    """Read an answer of the pod, in whatever form it is."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAnswered(f"the pod's answer cannot be read: {plain(str(error))[:500]}") from None


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    # The last line of kubectl is the cause. Earlier lines are warnings.
    return plain(lines[-1][:500]) if lines else "kubectl exec failed without a message"


def _state(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_size, int(state.st_mtime)
