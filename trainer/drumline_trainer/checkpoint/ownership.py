"""Ownership of the place of a job's checkpoints, and of the right to commit there.

Memberships of one job are ordered: a lower one never takes the place from a higher one. Different
jobs have no order between them. A job takes the place of one that has ended (`takeover`), and the
last to claim owns the place. A run without an operator is a new job with each launch (`run_name`).
So a run that was thought dead does not commit beside its successor.

This module has values only. The storages compare and record them in one act (`folder`, `bucket`).
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline_trainer.checkpoint.errors import FolderTakenError, StaleMembershipError

Membership = tuple[int, int]
"""(generation, attempt), in lexicographic order."""

_RUN = "run "
"""Begins the name of a run; no uid of a job begins so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One membership of one job."""

    name: str
    """Uid of the job, or the name of a run without an operator (`run_name`)."""
    membership: Membership
    job: str = ""
    """`namespace/name` of the job; empty for a run without an operator."""

    @property
    def label(self) -> str:
        """The owner in messages."""
        return self.job or (self.name if self.is_run else f"job {self.name}")

    @property
    def is_run(self) -> bool:
        """True for a run without an operator."""
        return self.name.startswith(_RUN)

    @property
    def tag(self) -> str:
        """Part of a name that differs from every other membership's, of any job."""
        return "-".join([short(self.name), *map(str, self.membership)])

    def to_json(self) -> dict[str, Any]:
        """Return the form that `parse` reads."""
        generation, attempt = self.membership
        raw = {"owner": self.name, "generation": generation, "attempt": attempt}
        return {**raw, "job": self.job} if self.job else raw

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Owner:
        """Read `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        membership = int(raw["generation"]), int(raw["attempt"])
        job = str(raw.get("job", ""))
        return cls(name=str(raw["owner"]), membership=membership, job=job)

    def refuse_if_replaced(
        self, known: Owner | None, *, where: str, ignore_other_jobs: bool = False
    ) -> None:
        """Raise StaleMembershipError if `known`, the owner that the storage names, is newer.

        Another job's ownership raises FolderTakenError.

        Args:
            known: the owner in the storage, or None.
            where: the storage, for the message.
            ignore_other_jobs: whether the checkpoints of another job are accepted.
        """
        if known is None:
            return
        ours = f"generation {self.membership[0]}.{self.membership[1]}"
        if known.name != self.name:
            if not ignore_other_jobs:
                raise FolderTakenError(
                    f"CheckpointFolderInUse: held by {known.label}. {ours} of {self.label} leaves"
                    f" {where} alone: {known.label} has taken it over"
                )
        elif known.membership > self.membership:
            newer = f"{known.membership[0]}.{known.membership[1]}"
            raise StaleMembershipError(f"{ours} was replaced by {newer}; it leaves {where} alone")


def short(owner: str) -> str:
    """Return eight hex digits that stand for a job in file names, whatever its uid looks like."""
    return hashlib.sha256(owner.encode()).hexdigest()[:8]


def run_name() -> str:
    """Return the owner's name of a run without an operator, unique for each launch."""
    return f"{_RUN}{secrets.token_hex(6)} on {socket.gethostname()}"
