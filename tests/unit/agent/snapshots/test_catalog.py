from __future__ import annotations

from pathlib import Path

from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.snapshots.catalog import SnapshotCatalog
from tests.unit.agent.snapshot_examples import snapshot


def arrive(snapshots: SnapshotCatalog, arriving: SnapshotInfo) -> Path:
    path = snapshots.incoming_path(arriving, copy=True)
    path.write_bytes(b"abc")
    snapshots.commit_incoming(arriving, copy=True)
    return path.with_suffix(".snapshot")


def test_of_each_rank_the_two_newest_are_held(tmp_path: Path) -> None:
    snapshots = SnapshotCatalog(tmp_path)
    files = [arrive(snapshots, snapshot(1, step)) for step in (10, 20, 30)]

    assert [held.step for held in snapshots.all] == [30, 20]
    assert [file.exists() for file in files] == [False, True, True]
    assert snapshots.find(1, 20) == (snapshot(1, 20), files[1])
    assert (snapshots.find(1, 10), snapshots.find(0, 20)) == (None, None)
    assert not snapshots.path(1, 20).exists(), "a copy is not where the rank would look for it"


def test_going_back_drops_what_is_newer_and_what_does_not_fit(tmp_path: Path) -> None:
    snapshots = SnapshotCatalog(tmp_path)
    kept, newer = arrive(snapshots, snapshot(1, 10)), arrive(snapshots, snapshot(1, 20))
    snapshots.add_own(snapshot(0, 20))
    snapshots.keep_history(10, world_size=2)
    assert snapshots.all == (snapshot(1, 10),)
    assert (kept.exists(), newer.exists()) == (True, False)

    snapshots.keep_history(10, world_size=4)
    assert snapshots.all == ()
    arrive(snapshots, snapshot(1, 10))
    snapshots.keep_history(None, world_size=2)
    assert snapshots.all == ()


def test_an_older_step_after_a_newer_one_begins_another_history(tmp_path: Path) -> None:
    snapshots = SnapshotCatalog(tmp_path)
    files = [arrive(snapshots, snapshot(1, step)) for step in (10, 20, 15)]
    assert [held.step for held in snapshots.all] == [15, 10]
    assert [file.exists() for file in files] == [True, False, True]
