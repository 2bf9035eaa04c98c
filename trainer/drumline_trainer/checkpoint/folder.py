"""The folder of a job's checkpoints: names, who owns it, what is kept.

    membership.json                 the job and its (generation, attempt) that own the folder
    lock                            held for the instant of a commit or a change of owner
    step-00000100/                  a committed checkpoint
    step-00000150.tmp-5f1c09ab-2-0/ being written by generation 2, attempt 0 of one job
    step-00000100.old-5f1c09ab-2-0/ a checkpoint of the same step that a new commit replaced

Memberships of one job are ordered: a lower one never takes the folder from a higher one. Different
jobs have no order between them; a new job may go on where another one stopped, so the last to claim
owns the folder. Commit and ownership exclude each other by a file lock: whoever was replaced a
moment ago can no longer commit.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from drumline_trainer.checkpoint.errors import CorruptCheckpointError, StaleMembershipError

Membership = tuple[int, int]
"""(generation, attempt), in lexicographic order."""

_COMMITTED = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"step-\d{8,}\.tmp-([0-9a-f]{8})-(\d+)-(\d+)")
_REPLACED = re.compile(r"(step-\d{8,})\.old-[0-9a-f]{8}-\d+-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """Operations on names only; contents are the business of `save` and `restore`."""

    path: Path
    owner: str
    """Uid of the job; empty for a run that nobody coordinates."""
    membership: Membership

    def claim(self) -> None:
        """Become the folder's owner and clear what its earlier owners left unfinished.

        Called by rank 0 alone, before anything is read or written.

        Raises:
            StaleMembershipError: a newer membership of this job has claimed it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._refuse_if_replaced(ignore_other_jobs=True)
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
        return self.path / f"step-{step:08d}.tmp-{self._tag}"

    def commit(self, step: int) -> None:
        """Make the finished temporary folder visible under its step, durably.

        A checkpoint of that step that is there already (corrupt, or of an abandoned continuation)
        is set aside first and removed after; `claim` undoes a half-done replacement.

        Raises:
            StaleMembershipError: another one owns the folder by now; nothing was changed.
        """
        target, unfinished = self.step_folder(step), self.unfinished_folder(step)
        aside = target.with_name(f"{target.name}.old-{self._tag}")
        with self._locked():
            self._refuse_if_replaced()
            if target.exists():
                target.rename(aside)
            unfinished.rename(target)
            sync_folder(self.path)
        if aside.exists():
            shutil.rmtree(aside)

    def replaced_by(self) -> str:
        """Why this membership may no longer commit; empty where it may, or nobody knows."""
        try:
            with self._locked():
                self._refuse_if_replaced()
        except StaleMembershipError as error:
            return str(error)
        except (CorruptCheckpointError, OSError):
            pass
        return ""

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
                self._remove(step)

    def _remove(self, step: int) -> None:
        """Out of sight first: what is half removed does not look like a checkpoint."""
        self.discard(step)
        with suppress(OSError):
            self.step_folder(step).rename(self.unfinished_folder(step))
        self.discard(step)

    @property
    def _tag(self) -> str:
        """Sets names of this membership apart from those of all others, of any job."""
        return "-".join([_short(self.owner), *map(str, self.membership)])

    def _settle(self, entry: Path) -> None:
        unfinished, replaced = _UNFINISHED.fullmatch(entry.name), _REPLACED.fullmatch(entry.name)
        if (unfinished and self._replaces(*unfinished.groups())) or (
            replaced and (self.path / replaced[1]).exists()
        ):
            shutil.rmtree(entry, ignore_errors=True)
        elif replaced:
            entry.rename(self.path / replaced[1])

    def _replaces(self, owner: str, generation: str, attempt: str) -> bool:
        """Whether what that membership left unfinished will never be committed."""
        return owner != _short(self.owner) or (int(generation), int(attempt)) <= self.membership

    def _refuse_if_replaced(self, *, ignore_other_jobs: bool = False) -> None:
        known = self._read_membership()
        if known is None:
            return
        owner, membership = known
        ours = f"generation {self.membership[0]}.{self.membership[1]}"
        if owner != self.owner:
            if not ignore_other_jobs:
                raise StaleMembershipError(
                    f"{ours} of {_named(self.owner)} leaves {self.path} alone:"
                    f" {_named(owner)} has taken it over"
                )
        elif membership > self.membership:
            raise StaleMembershipError(
                f"{ours} was replaced by {membership[0]}.{membership[1]}; it leaves {self.path}"
                " alone"
            )

    def _read_membership(self) -> tuple[str, Membership] | None:
        try:
            raw = json.loads((self.path / "membership.json").read_bytes())
            return str(raw["owner"]), (int(raw["generation"]), int(raw["attempt"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpointError(
                f"{self.path / 'membership.json'} is damaged ({error!r}); remove it once nothing"
                " else is training into this folder"
            ) from error

    def _write_membership(self) -> None:
        generation, attempt = self.membership
        whole = {"owner": self.owner, "generation": generation, "attempt": attempt}
        body = json.dumps(whole) + "\n"
        fresh = self.path / f"membership.json.tmp-{self._tag}"
        write_durably(fresh, body.encode())
        fresh.rename(self.path / "membership.json")
        sync_folder(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, or its holder dies
            yield


def _short(owner: str) -> str:
    """Eight hex digits that stand for a job in file names, whatever its uid looks like."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


def _named(owner: str) -> str:
    return f"job {owner}" if owner else "a run without a job"


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
