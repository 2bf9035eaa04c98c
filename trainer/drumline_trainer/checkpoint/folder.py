"""The folder of a job's checkpoints: names, ownership, retention.

    membership.json                 the job and its (generation, attempt) that own the folder
    lock                            held during a commit or a change of owner
    lease.json                      renewed while the owner trains (`lease`)
    step-00000100/                  a committed checkpoint
    step-00000150.tmp-5f1c09ab-2-0/ being written by generation 2, attempt 0 of one job
    step-00000100.old-5f1c09ab-2-0/ a checkpoint of the same step that a new commit replaced

`ownership` decides who may own the folder. A file lock separates commits from changes of the owner,
so a membership that has been replaced can no longer commit.

Example: generation 2 writes into `step-00000150.tmp-5f1c09ab-2-0/` when generation 3 claims the
folder. The claim removes that unfinished folder. The commit of generation 2 takes the lock after
the claim, reads generation 3 in membership.json and raises StaleMembershipError.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drumline_contract.regular_files import NotRegularError, open_regular
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StaleMembershipError,
)
from drumline_trainer.checkpoint.folder_files import FolderFiles, sync_folder, write_durably
from drumline_trainer.checkpoint.folder_lock import locked
from drumline_trainer.checkpoint.lease import LEASE_FILE, LeaseFile
from drumline_trainer.checkpoint.ownership import Membership, Owner, short
from drumline_trainer.checkpoint.retention import outdated
from drumline_trainer.checkpoint.storage import StepFiles

_MAX_MEMBERSHIP_BYTES = 1 << 16
logger = logging.getLogger(__name__)
_COMMITTED = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"step-\d{8,}\.tmp-([0-9a-f]{8})-(\d+)-(\d+)")
_REPLACED = re.compile(r"(step-\d{8,})\.old-[0-9a-f]{8}-\d+-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """A `CheckpointStorage`; what it does itself are operations on names."""

    path: Path
    owner: str
    """Uid of the job, or the name of a run without an operator."""
    membership: Membership
    job: str = ""
    """`namespace/name` of the job; empty for a run without an operator."""

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def is_cached_by_nodes(self) -> bool:
        """Its page cache holds what was just read."""
        return True

    @property
    def lease(self) -> LeaseFile:
        """See `CheckpointStorage`."""
        return LeaseFile(path=self.path / LEASE_FILE)

    def known_owner(self) -> Owner | None:
        """See `CheckpointStorage`."""
        return self._read_membership()

    def claim(self, *, seen: Owner | None = None) -> None:
        """Become the folder's owner and remove what earlier owners left unfinished.

        Called by rank 0 alone, before anything is read or written.

        Raises:
            StaleMembershipError: a newer membership of this job has claimed it.
            FolderTakenError: another job than `seen` has.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            # A job that has ended can be replaced, but not a later membership of this job.
            known = self._read_membership()
            taken_by_another = seen is not None and known is not None and known.name != seen.name
            self._own.refuse_if_replaced(
                known, where=self.where, ignore_other_jobs=not taken_by_another
            )
            self._write_membership()
            # Under the lock: a folder of an earlier membership can no longer be committed.
            for entry in sorted(self.path.iterdir()):
                self._clean(entry)

    def steps(self) -> list[int]:
        """Return the committed steps, newest first, verified or not."""
        names = (_COMMITTED.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def committed(self, step: int) -> FolderFiles:
        """See `CheckpointStorage`; neither a file nor a link to another place is a checkpoint.

        Raises:
            CorruptCheckpointError: the step is not a folder.
        """
        folder = self.step_folder(step)
        # Other tenants may write to the claim. A link could lead anywhere.
        if folder.is_symlink() or not folder.is_dir():
            raise CorruptCheckpointError(f"{folder.name}: not a folder")
        return self.at(folder.name)

    def at(self, place: str) -> FolderFiles:
        """See `CheckpointStorage`."""
        return FolderFiles(path=self.path / place, committed_place=place)

    def begin(self, step: int) -> FolderFiles:
        """See `CheckpointStorage`: each save of a step writes over what failed before."""
        place = self.step_folder(step).name
        return FolderFiles(path=self.unfinished_folder(step), committed_place=place)

    def step_folder(self, step: int) -> Path:
        """Return the folder of the committed checkpoint of this step."""
        return self.path / f"step-{step:08d}"

    def unfinished_folder(self, step: int) -> Path:
        """Return the folder in which this membership writes before it commits."""
        return self.path / f"step-{step:08d}.tmp-{self._tag}"

    def commit(self, step: int, *, files: StepFiles) -> None:
        """Rename the finished temporary folder to its step's name, durably.

        An existing checkpoint of that step (corrupt, or of an abandoned continuation) is first
        renamed and afterwards removed; `claim` undoes a half-done replacement.

        Raises:
            StaleMembershipError: another membership owns the folder; nothing was changed.
        """
        target, unfinished = self.step_folder(step), self.path / files.place
        aside = target.with_name(f"{target.name}.old-{self._tag}")
        # Check and rename under one lock, so that a new owner cannot come in between.
        with locked(self.path):
            self._refuse_if_replaced()
            # A step that is saved again: its old folder stays whole until the new one is in place.
            if os.path.lexists(target):  # whatever lies there, a broken link too
                target.rename(aside)
            unfinished.rename(target)
            # A rename is durable only after its parent folder is synced.
            sync_folder(self.path)
        # Outside of the lock, because a large folder takes long.
        _remove(aside)

    def ownership_error(self) -> StaleMembershipError | None:
        """Return why this membership may no longer commit; None if it may or this is unknown."""
        try:
            with locked(self.path):
                self._refuse_if_replaced()
        except StaleMembershipError as error:
            return error
        # Unknown: the first error is the one to report.
        except (CorruptCheckpointError, OSError):
            pass
        return None

    def discard(self, files: StepFiles) -> None:
        """Remove the temporary folder of a failed save."""
        _remove(self.path / files.place)

    def prune(self, *, keep: int, verified: Sequence[int], spared: int | None = None) -> None:
        """Remove what `retention.outdated` says.

        Nothing is removed from a folder that another membership owns: it may be all that it has.
        Nothing is removed if the storage fails either: the new checkpoint is committed already.
        """
        try:
            steps = outdated(self.steps(), keep=keep, verified=verified, spared=spared)
            if not steps:
                return
            # Renames are fast. The slow removal of files follows without the lock.
            with locked(self.path):
                self._refuse_if_replaced()
                for step in steps:
                    self._set_aside(step)
        except CheckpointError:  # the next commit says so
            return
        except OSError as error:
            logger.warning("older checkpoints stay: %s", error)
            return
        for step in steps:
            self.discard(self.begin(step))

    def _set_aside(self, step: int) -> None:
        """Rename first: a half removed folder must not look like a checkpoint."""
        self.discard(self.begin(step))
        with suppress(OSError):
            self.step_folder(step).rename(self.unfinished_folder(step))

    @property
    def _tag(self) -> str:
        return self._own.tag

    @property
    def _own(self) -> Owner:
        return Owner(name=self.owner, membership=self.membership, job=self.job)

    def _clean(self, entry: Path) -> None:
        unfinished, replaced = _UNFINISHED.fullmatch(entry.name), _REPLACED.fullmatch(entry.name)
        if (unfinished and self._replaces(*unfinished.groups())) or (
            replaced and (self.path / replaced[1]).exists()
        ):
            _remove(entry)
        # A crash between two renames: bring the old folder of this step back.
        elif replaced:
            entry.rename(self.path / replaced[1])

    def _replaces(self, owner: str, generation: str, attempt: str) -> bool:
        """Return whether the unfinished folder of that membership can never be committed."""
        return owner != short(self.owner) or (int(generation), int(attempt)) <= self.membership

    def _refuse_if_replaced(self) -> None:
        self._own.refuse_if_replaced(self._read_membership(), where=self.where)

    def _read_membership(self) -> Owner | None:
        try:
            with open_regular(self.path / "membership.json") as file:
                # A longer file is cut, and then it is not JSON.
                return Owner.parse(json.loads(file.read(_MAX_MEMBERSHIP_BYTES)))
        except FileNotFoundError:
            return None
        except (NotRegularError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"{self.path / 'membership.json'} is damaged ({error!r}); remove it once nothing"
                " else is training into this folder"
            ) from error

    def _write_membership(self) -> None:
        body = json.dumps(self._own.to_json()) + "\n"
        fresh = self.path / f"membership.json.tmp-{self._tag}"
        write_durably(fresh, body.encode())
        # Atomic: a reader sees the old owner or the new one, never half a file.
        fresh.rename(self.path / "membership.json")
        sync_folder(self.path)


def _remove(path: Path) -> None:
    """Remove a folder with its contents, or a file in its place. Errors are ignored."""
    # Storage that is lost fails already at the first look.
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
