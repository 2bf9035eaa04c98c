"""A folder and a bucket keep the same promises."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline_trainer.checkpoint.commit import Superseded
from drumline_trainer.checkpoint.errors import CorruptCheckpointError, StaleMembershipError
from tests.object_store import ObjectStore
from tests.unit.trainer.checkpoint.bucket.gang import Gang, Place, opened, restored

Files = Callable[[], dict[str, Path]]

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.extended(keep=6)]


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "checkpoints" if request.param == "folder" else request.getfixturevalue("url")


@pytest.fixture
def files(place: Place, object_store: ObjectStore, prefix: str) -> Files:
    """All files of the place, by name."""

    def listed() -> dict[str, Path]:
        if isinstance(place, Path):
            return {str(f.relative_to(place)): f for f in place.rglob("*") if f.is_file()}
        return object_store.objects(prefix)

    return listed


def gang(place: Place, *membership: int, owner: str = "job", claim: str = "0a") -> Gang:
    return Gang.claimed(lambda: opened(place, *membership, owner=owner, claim=claim))


def test_what_two_ranks_save_one_rank_restores_to_the_last_bit(place: Place) -> None:
    saving = gang(place)
    assert restored(saving.storages[0]) is None
    for step in (3, 20, 123_456_789):
        saving.save(step)
    assert saving.storages[0].steps() == [123_456_789, 20, 3]
    assert restored(opened(place)) == 123_456_789


def test_a_step_is_seen_only_once_it_is_committed(place: Place) -> None:
    saving = gang(place)
    files = saving.storages[0].begin(1)
    files.write("rank-00000-of-00002.safetensors", {}, check=lambda: None)
    files.write_small({"manifest.json": b"{}"})
    assert saving.storages[0].steps() == []


@pytest.mark.parametrize("newer", [(2, 0), (1, 6)])
def test_only_the_newest_membership_commits(place: Place, newer: tuple[int, int]) -> None:
    old = gang(place, 1, 5)
    old.save(1)
    new = gang(place, *newer, claim="0b")
    outcome = old.try_to_save(2)
    assert isinstance(outcome, Superseded)
    assert "generation 1.5 was replaced by" in outcome.reason
    with pytest.raises(StaleMembershipError):
        old.storages[0].claim()
    new.save(2)
    assert restored(opened(place)) == 2


def test_another_job_takes_over_and_the_first_one_changes_nothing_more(place: Place) -> None:
    first = gang(place, 3, owner="a")
    for step in (1, 2, 3):
        first.save(step)
    second = gang(place, 1, owner="b", claim="0b")
    outcome = first.try_to_save(4)
    assert isinstance(outcome, Superseded)
    assert "job b has taken it over" in outcome.reason
    first.storages[0].prune(keep=1, verified=[3])
    assert second.storages[0].steps() == [3, 2, 1]


def test_a_claim_removes_what_was_not_committed_and_nothing_else(
    place: Place, files: Files
) -> None:
    first = gang(place)
    first.save(1)
    before = {name for name in files() if name.startswith("step-")}
    first.storages[0].begin(2).write("rank-00000-of-00002.safetensors", {}, check=lambda: None)
    assert {name for name in files() if name.startswith("step-")} > before
    second = gang(place, 2, claim="0b")
    assert {name for name in files() if name.startswith("step-")} == before
    assert restored(second.storages[0]) == 1


def test_a_step_that_is_saved_again_replaces_the_one_before(place: Place, files: Files) -> None:
    saving = gang(place)
    saving.save(1)
    saving.save(1)
    assert saving.storages[0].steps() == [1]
    places = {name.split("/")[0] for name in files() if name.startswith("step-")}
    assert len(places) == 1
    assert restored(opened(place)) == 1


@pytest.mark.parametrize(
    ("verified", "left"), [([4, 5], [5, 4]), ([1, 5], [5, 4, 3, 2, 1]), ([5], [5, 4, 3, 2, 1])]
)
def test_retention_counts_verified_ones(place: Place, verified: list[int], left: list[int]) -> None:
    saving = gang(place)
    for step in range(1, 6):
        saving.save(step)
    saving.storages[0].prune(keep=2, verified=verified)
    assert saving.storages[0].steps() == left
    assert restored(opened(place)) == 5


def test_retention_spares_a_step(place: Place) -> None:
    saving = gang(place)
    for step in range(1, 6):
        saving.save(step)
    saving.storages[0].prune(keep=2, verified=[4, 5], spared=2)
    assert saving.storages[0].steps() == [5, 4, 2]


def test_every_damage_is_seen_and_the_step_before_is_taken(place: Place, files: Files) -> None:
    saving = gang(place)
    saving.save(1)
    known = set(files())
    saving.save(2)
    choice = random.Random(7)
    newest = sorted(name for name in files() if name.startswith("step-") and name not in known)
    for name in newest * 2:
        file = files()[name]
        intact = file.read_bytes()
        at = choice.randrange(len(intact))
        flipped = bytes([intact[at] ^ 1 << choice.randrange(8)])
        damaged = intact[:at] + (flipped + intact[at + 1 :] if choice.random() < 0.7 else b"")
        file.write_bytes(damaged)
        assert restored(opened(place)) == 1, (name, at)
        file.write_bytes(intact)
    assert restored(opened(place)) == 2
    for file in files().values():
        if file.name == "manifest.sha256":
            file.write_bytes(b"")
    with pytest.raises(CorruptCheckpointError, match="step 2, step 1"):
        restored(opened(place))
