"""The folder of a job's checkpoints: names, who owns it, what is kept.

    membership.json            the newest (generation, attempt) that opened the folder
    lock                       held for the instant of a commit or a change of owner
    step-00000100/             a committed checkpoint
    step-00000150.tmp-2-0/     being written by generation 2, attempt 0
    step-00000100.old-2-0/     a checkpoint of the same step that a new commit replaced

Commit and ownership exclude each other by a file lock: a membership that was replaced a moment ago
can no longer commit.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drumline_trainer.checkpoint.errors import CorruptCheckpointError, StaleMembershipError

Membership = tuple[int, int]
"""(generation, attempt), in lexicographic order."""

_COMMITTED = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"step-\d{8,}\.tmp-(\d+)-(\d+)")
_REPLACED = re.compile(r"(step-\d{8,})\.old-\d+-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """Operations on names only; contents are the business of `save` and `restore`."""

    path: Path
    membership: Membership

    def claim(self) -> None:
        """Become the folder's owner and clear what older memberships left unfinished.

        Called by rank 0 alone, before anything is read or written.

        Raises:
            StaleMembershipError: a newer membership has claimed it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._refuse_if_stale()
            self._write_membership()
            for entry in sorted(self.path.iterdir()):
                self._settle(entry)

    def steps(self) -> list[int]:
        """Committed steps, newest first, verified or not."""
        names = (_COMMITTED.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def step_folder(self, step: int) -> Path:
        """Where the committed checkpoint of this step lies."""
        return self.path / f"step-{step:08d}"

    def unfinished_folder(self, step: int) -> Path:
        """Where this membership writes before it commits."""
        generation, attempt = self.membership
        return self.path / f"step-{step:08d}.tmp-{generation}-{attempt}"

    def commit(self, step: int) -> None:
        """Make the finished temporary folder visible under its step, durably.

        A checkpoint of that step that is there already (corrupt, or of an abandoned continuation)
        is set aside first and removed after; `claim` undoes a half-done replacement.

        Raises:
            StaleMembershipError: a newer membership owns the folder; nothing was changed.
        """
        target, unfinished = self.step_folder(step), self.unfinished_folder(step)
        generation, attempt = self.membership
        aside = target.with_name(f"{target.name}.old-{generation}-{attempt}")
        with self._locked():
            self._refuse_if_stale()
            if target.exists():
                target.rename(aside)
            unfinished.rename(target)
            sync_folder(self.path)
        if aside.exists():
            shutil.rmtree(aside)

    def discard(self, step: int) -> None:
        """Remove the temporary folder of a failed save."""
        shutil.rmtree(self.unfinished_folder(step), ignore_errors=True)

    def prune(self, *, keep: int, verified: Sequence[int]) -> None:
        """Remove what is older than the `keep` newest of the steps known to be verified.

        With fewer than `keep` of them nothing goes, so the last verified one always stays.
        """
        newest = sorted(verified, reverse=True)[:keep]
        if len(newest) < keep:
            return
        for step in self.steps():
            if step < newest[-1]:
                shutil.rmtree(self.step_folder(step), ignore_errors=True)

    def _settle(self, entry: Path) -> None:
        unfinished, replaced = _UNFINISHED.fullmatch(entry.name), _REPLACED.fullmatch(entry.name)
        if (unfinished and (int(unfinished[1]), int(unfinished[2])) <= self.membership) or (
            replaced and (self.path / replaced[1]).exists()
        ):
            shutil.rmtree(entry, ignore_errors=True)
        elif replaced:
            entry.rename(self.path / replaced[1])

    def _refuse_if_stale(self) -> None:
        owner = self._read_membership()
        if owner is not None and owner > self.membership:
            raise StaleMembershipError(
                f"generation {self.membership[0]}.{self.membership[1]} was replaced by"
                f" {owner[0]}.{owner[1]}; it leaves {self.path} alone"
            )

    def _read_membership(self) -> Membership | None:
        try:
            raw = json.loads((self.path / "membership.json").read_bytes())
            return int(raw["generation"]), int(raw["attempt"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(
                f"{self.path / 'membership.json'} is damaged ({error}); remove it once no other"
                " generation of this job is running"
            ) from error

    def _write_membership(self) -> None:
        generation, attempt = self.membership
        body = json.dumps({"generation": generation, "attempt": attempt}) + "\n"
        fresh = self.path / f"membership.json.tmp-{generation}-{attempt}"
        write_durably(fresh, body.encode())
        fresh.rename(self.path / "membership.json")
        sync_folder(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, or its holder dies
            yield


def write_durably(path: Path, body: bytes) -> None:
    """Write a small file and fsync it."""
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
