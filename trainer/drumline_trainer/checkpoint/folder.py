"""The folder of a job's checkpoints: names, ownership, retention.

    membership.json                 the job and its (generation, attempt) that own the folder
    lock                            held during a commit or a change of owner
    step-00000100/                  a committed checkpoint
    step-00000150.tmp-5f1c09ab-2-0/ being written by generation 2, attempt 0 of one job
    step-00000100.old-5f1c09ab-2-0/ a checkpoint of the same step that a new commit replaced

Memberships of one job are ordered: a lower one never takes the folder from a higher one. Different
jobs have no order between them; a new job may go on where another one stopped, so the last to claim
owns the folder. A run without an operator is a job of its own each time that it is launched
(`run_name`): a run that was thought dead does not commit beside its successor.

A commit and a change of owner exclude each other by a file lock: a membership that has been
replaced can no longer commit.

Example: generation 2 writes into `step-00000150.tmp-5f1c09ab-2-0/` when generation 3 claims the
folder. The claim removes that unfinished folder. The commit of generation 2 takes the lock after
the claim, reads generation 3 in membership.json and raises StaleMembershipError.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from drumline_trainer.checkpoint.errors import CorruptCheckpointError, StaleMembershipError

Membership = tuple[int, int]
"""(generation, attempt), in lexicographic order."""

_RUN = "run "
"""Begins the name of a run; no uid of a job begins so."""
_COMMITTED = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"step-\d{8,}\.tmp-([0-9a-f]{8})-(\d+)-(\d+)")
_REPLACED = re.compile(r"(step-\d{8,})\.old-[0-9a-f]{8}-\d+-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """Operations on names only; `commit` and `restore` write and read the contents."""

    path: Path
    owner: str
    """Uid of the job, or the name of a run without an operator (`run_name`)."""
    membership: Membership

    def claim(self) -> None:
        """Become the folder's owner and remove what earlier owners left unfinished.

        Called by rank 0 alone, before anything is read or written.

        Raises:
            StaleMembershipError: a newer membership of this job has claimed it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._refuse_if_replaced(ignore_other_jobs=True)
            self._write_membership()
            for entry in sorted(self.path.iterdir()):
                self._clean(entry)

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

        An existing checkpoint of that step (corrupt, or of an abandoned continuation) is first
        renamed and afterwards removed; `claim` undoes a half-done replacement.

        Raises:
            StaleMembershipError: another membership owns the folder; nothing was changed.
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

    def ownership_error(self) -> StaleMembershipError | None:
        """Why this membership may no longer commit; None where it may, or that cannot be read."""
        try:
            with self._locked():
                self._refuse_if_replaced()
        except StaleMembershipError as error:
            return error
        except (CorruptCheckpointError, OSError):
            pass
        return None

    def discard(self, step: int) -> None:
        """Remove the temporary folder of a failed save."""
        shutil.rmtree(self.unfinished_folder(step), ignore_errors=True)

    def prune(self, *, keep: int, verified: Sequence[int]) -> None:
        """Remove what is older than the `keep` newest of the steps known to be verified.

        With fewer verified steps nothing is removed, so the last verified one always stays. Nothing
        is removed either from a folder that another membership owns: they may be all that it has.
        """
        newest = sorted(verified, reverse=True)[:keep]
        if len(newest) < keep:
            return
        outdated = [step for step in self.steps() if step < newest[-1]]
        try:
            with self._locked():
                self._refuse_if_replaced()
                for step in outdated:
                    self._set_aside(step)
        except (StaleMembershipError, CorruptCheckpointError):
            return
        for step in outdated:
            self.discard(step)

    def _set_aside(self, step: int) -> None:
        """Rename first: a half removed folder must not look like a checkpoint."""
        self.discard(step)
        with suppress(OSError):
            self.step_folder(step).rename(self.unfinished_folder(step))

    @property
    def _tag(self) -> str:
        """Part of a name that differs from every other membership's, of any job."""
        return "-".join([_short(self.owner), *map(str, self.membership)])

    def _clean(self, entry: Path) -> None:
        unfinished, replaced = _UNFINISHED.fullmatch(entry.name), _REPLACED.fullmatch(entry.name)
        if (unfinished and self._replaces(*unfinished.groups())) or (
            replaced and (self.path / replaced[1]).exists()
        ):
            shutil.rmtree(entry, ignore_errors=True)
        elif replaced:
            entry.rename(self.path / replaced[1])

    def _replaces(self, owner: str, generation: str, attempt: str) -> bool:
        """Whether the unfinished folder of that membership can never be committed."""
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
    def _locked(self) -> Generator[None]:
        with (self.path / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, or its holder dies
            yield


def _short(owner: str) -> str:
    """Eight hex digits that stand for a job in file names, whatever its uid looks like."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


def run_name() -> str:
    """The owner's name of a run without an operator: another one for each launch."""
    return f"{_RUN}{secrets.token_hex(6)} on {socket.gethostname()}"


def _named(owner: str) -> str:
    return owner if owner.startswith(_RUN) else f"job {owner}"


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
