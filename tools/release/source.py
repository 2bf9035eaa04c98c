"""What is released: version, commit, and the time that everything made from it carries."""

from __future__ import annotations

import os
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One state of the repository.

    Attributes:
        version: of chart, images and the distribution `drumline`.
        commit: the 40 digits of the commit that is checked out.
        modified: files differ from that commit: what is made proves nothing about it.
        epoch: seconds; the commit's time, or SOURCE_DATE_EPOCH.
    """

    version: str
    commit: str
    modified: bool
    epoch: int

    @property
    def time(self) -> str:
        """The epoch as RFC 3339 writes it."""
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_source() -> Source:
    """The repository as it is checked out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    return Source(
        version=project["version"],
        commit=_git("rev-parse", "HEAD"),
        modified=bool(_git("status", "--porcelain")),
        epoch=int(epoch),
    )


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
