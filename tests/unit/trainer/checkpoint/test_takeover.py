"""Two jobs with one checkpoint folder: who may take it, and what the other one is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drumline_trainer.checkpoint import takeover
from drumline_trainer.checkpoint.errors import FolderInUseError, FolderTakenError
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.lease import FolderLease, Seat
from drumline_trainer.checkpoint.ownership import Owner, run_name
from tests.texts import missing

FIRST = Owner(name="uid-1", membership=(3, 1), job="demo/first")
SECOND = Owner(name="uid-2", membership=(1, 0), job="demo/second")
AGAIN = Owner(name="uid-3", membership=(1, 0), job="demo/first")
RUN = Owner(name=run_name(), membership=(0, 0))
OLD = Owner(name="uid-0", membership=(3, 1))
"""Owner as written by a version that did not write the job's name."""


def folder(path: Path, own: Owner) -> CheckpointFolder:
    return CheckpointFolder(path=path, owner=own.name, membership=own.membership, job=own.job)


def used_by(path: Path, own: Owner, *, steps: tuple[int, ...] = (130,)) -> CheckpointFolder:
    """A folder that this owner used, with these checkpoints."""
    opened = folder(path, own)
    opened.claim()
    for step in steps:
        opened.unfinished_folder(step).mkdir()
        opened.commit(step, files=opened.begin(step))
    return opened


def claim(path: Path, own: Owner, *, continue_from: str = "") -> None:
    takeover.claim(folder(path, own), own=own, continue_from=continue_from, check=lambda: None)


@pytest.mark.parametrize(
    ("known", "own", "continue_from"),
    [
        pytest.param(FIRST, SECOND, "first", id="named"),
        pytest.param(FIRST, SECOND, "demo/first", id="named with its namespace"),
        pytest.param(FIRST, AGAIN, "", id="created again under its name"),
        pytest.param(FIRST, RUN, "demo/first", id="a run that names it"),
        pytest.param(RUN, SECOND, "run", id="a run has no name"),
        pytest.param(OLD, SECOND, "first", id="an old folder has no name"),
        pytest.param(RUN, replace(RUN, name=run_name()), "", id="a run after a run"),
        pytest.param(FIRST, replace(FIRST, membership=(4, 0)), "", id="the job itself"),
    ],
)
def test_may_continue(tmp_path: Path, known: Owner, own: Owner, continue_from: str) -> None:
    used_by(tmp_path, known)
    claim(tmp_path, own, continue_from=continue_from)
    assert folder(tmp_path, own).known_owner() == own


@pytest.mark.parametrize(
    ("known", "own", "continue_from"),
    [
        (FIRST, SECOND, ""),
        (FIRST, SECOND, "other"),
        (FIRST, SECOND, "other/first"),
        (FIRST, RUN, ""),
        (FIRST, replace(AGAIN, job="other/first"), ""),
        (FIRST, replace(SECOND, job="other/second"), "first"),
        (RUN, SECOND, ""),
        (OLD, SECOND, ""),
    ],
)
def test_never_continues_from_weights_of_a_job_that_it_does_not_name(
    tmp_path: Path, known: Owner, own: Owner, continue_from: str
) -> None:
    used_by(tmp_path, known)
    with pytest.raises(FolderInUseError) as refused:
        claim(tmp_path, own, continue_from=continue_from)
    expected = (f"CheckpointFolderInUse: held by {known.label}", "continueFrom", str(tmp_path))
    assert not missing(str(refused.value), *expected)
    assert folder(tmp_path, known).known_owner() == known


def test_a_folder_without_a_checkpoint_has_no_weights_to_mix(tmp_path: Path) -> None:
    used_by(tmp_path, FIRST, steps=())
    claim(tmp_path, SECOND)
    assert folder(tmp_path, SECOND).known_owner() == SECOND


@pytest.mark.parametrize("steps", [(), (130,)])
def test_a_job_that_still_trains_keeps_its_folder(tmp_path: Path, steps: tuple[int, ...]) -> None:
    opened = used_by(tmp_path, FIRST, steps=steps)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        seat = replace(Seat.here(), pid=process.pid, started=stat[19])
        opened.lease.write(FolderLease(owner=FIRST.name, seat=seat).encode())
        with pytest.raises(FolderInUseError, match="CheckpointFolderInUse: held by demo/first"):
            claim(tmp_path, SECOND)
        process.kill()
    claim(tmp_path, SECOND, continue_from="first")


def test_of_two_that_start_at_once_one_is_told(tmp_path: Path) -> None:
    used_by(tmp_path, FIRST, steps=())
    seen = folder(tmp_path, SECOND).known_owner()
    claim(tmp_path, RUN)
    with pytest.raises(FolderTakenError, match="CheckpointFolderInUse: held by run"):
        folder(tmp_path, SECOND).claim(seen=seen)


def test_a_job_whose_folder_was_taken_over_never_takes_it_back(tmp_path: Path) -> None:
    first = used_by(tmp_path, FIRST)
    claim(tmp_path, SECOND, continue_from="first")
    with pytest.raises(FolderTakenError, match="held by demo/second"):
        first.commit(140, files=first.begin(140))
    with pytest.raises(FolderInUseError, match="held by demo/second"):
        claim(tmp_path, replace(FIRST, membership=(4, 0)))
