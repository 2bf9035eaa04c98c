"""Test two jobs with one checkpoint folder or bucket. Only one job may use it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drumline_contract.buckets.objects import ObjectBucket
from drumline_trainer.checkpoint import takeover
from drumline_trainer.checkpoint.bucket.storage import BucketStorage
from drumline_trainer.checkpoint.errors import FolderInUseError, FolderTakenError
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.lease import FolderLease, Seat
from drumline_trainer.checkpoint.ownership import Owner, run_name, short
from drumline_trainer.checkpoint.storage import CheckpointStorage
from tests.texts import missing

FIRST = Owner(name="uid-1", membership=(3, 1), job="demo/first")
SECOND = Owner(name="uid-2", membership=(1, 0), job="demo/second")
AGAIN = Owner(name="uid-3", membership=(1, 0), job="demo/first")
RUN = Owner(name=run_name(), membership=(0, 0))
OLD = Owner(name="uid-0", membership=(3, 1))
"""Owner that an old version wrote, without the name of the job."""


Place = str | Path


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path if request.param == "folder" else request.getfixturevalue("url")


def storage(place: Place, own: Owner) -> CheckpointStorage:
    if isinstance(place, str):
        return BucketStorage(ObjectBucket(place), owner=own, claim=short(own.name))
    return CheckpointFolder(path=place, owner=own.name, membership=own.membership, job=own.job)


def used_by(place: Place, own: Owner, *, steps: tuple[int, ...] = (130,)) -> CheckpointStorage:
    """Return the storage of a place that this owner used, with these checkpoints."""
    opened = storage(place, own)
    opened.claim()
    for step in steps:
        if isinstance(opened, CheckpointFolder):
            opened.unfinished_folder(step).mkdir()
        opened.commit(step, files=opened.begin(step))
    return opened


def claim(place: Place, own: Owner, *, continue_from: str = "") -> None:
    takeover.claim(storage(place, own), own=own, continue_from=continue_from, check=lambda: None)


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
def test_may_continue(place: Place, known: Owner, own: Owner, continue_from: str) -> None:
    used_by(place, known)
    claim(place, own, continue_from=continue_from)
    assert storage(place, own).known_owner() == own


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
    place: Place, known: Owner, own: Owner, continue_from: str
) -> None:
    used_by(place, known)
    with pytest.raises(FolderInUseError) as refused:
        claim(place, own, continue_from=continue_from)
    expected = (f"CheckpointFolderInUse: held by {known.label}", "continueFrom", str(place))
    assert not missing(str(refused.value), *expected)
    assert storage(place, known).known_owner() == known


def test_a_folder_without_a_checkpoint_has_no_weights_to_mix(place: Place) -> None:
    used_by(place, FIRST, steps=())
    claim(place, SECOND)
    assert storage(place, SECOND).known_owner() == SECOND


@pytest.mark.parametrize("steps", [(), (130,)])
def test_a_job_that_still_trains_keeps_its_storage(place: Place, steps: tuple[int, ...]) -> None:
    opened = used_by(place, FIRST, steps=steps)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        seat = replace(Seat.here(), pid=process.pid, started=stat[19])
        opened.lease.write(FolderLease(owner=FIRST.name, seat=seat).encode())
        with pytest.raises(FolderInUseError, match="CheckpointFolderInUse: held by demo/first"):
            claim(place, SECOND)
        process.kill()
    claim(place, SECOND, continue_from="first")


def test_one_of_two_concurrent_starts_is_refused(place: Place) -> None:
    used_by(place, FIRST, steps=())
    seen = storage(place, SECOND).known_owner()
    claim(place, RUN)
    with pytest.raises(FolderTakenError, match="CheckpointFolderInUse: held by run"):
        storage(place, SECOND).claim(seen=seen)


def test_a_job_whose_folder_was_taken_over_never_takes_it_back(place: Place) -> None:
    first = used_by(place, FIRST)
    claim(place, SECOND, continue_from="first")
    with pytest.raises(FolderTakenError, match="held by demo/second"):
        first.commit(140, files=first.begin(140))
    with pytest.raises(FolderInUseError, match="held by demo/second"):
        claim(place, replace(FIRST, membership=(4, 0)))
