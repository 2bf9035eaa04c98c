"""A lease shows whether the owner of a checkpoint folder or a bucket still trains."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from drumline_contract.buckets.objects import ObjectBucket
from drumline_trainer.checkpoint.bucket.storage import LeaseObject
from drumline_trainer.checkpoint.lease import (
    BEAT_SECONDS,
    EXPIRY_SECONDS,
    FolderLease,
    LeaseFile,
    LeaseKeeper,
    LeasePlace,
    Seat,
    is_alive,
)

ELSEWHERE = Seat(machine="another host", pid=7, started="123")


@dataclass
class Clock:
    """Time that passes only while somebody sleeps; `at` writes the lease then."""

    place: LeasePlace
    at: dict[float, bytes | None] = field(default_factory=dict[float, bytes | None])
    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        """Pass this time, and make the writes that are due."""
        self.now += seconds
        for time in [time for time in self.at if time <= self.now]:
            body = self.at.pop(time)
            self.place.remove() if body is None else self.place.write(body)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LeasePlace:
    if request.param == "folder":
        return LeaseFile(path=tmp_path / "lease.json")
    return LeaseObject(ObjectBucket(request.getfixturevalue("url")))


def lease(beat: int = 0, *, seat: Seat = ELSEWHERE) -> bytes:
    return FolderLease(owner="first", seat=seat, beat=beat).encode()


def watched(place: LeasePlace, at: dict[float, bytes | None]) -> tuple[bool, float]:
    """Return whether the owner is alive, and the seconds that the watch took."""
    clock = Clock(place, at)
    return is_alive(place, clock=lambda: clock.now, sleep=clock.sleep), clock.now


def test_without_a_lease_nobody_trains(place: LeasePlace) -> None:
    assert watched(place, {}) == (False, 0.0)


def test_a_lease_that_is_renewed_is_alive(place: LeasePlace) -> None:
    place.write(lease())
    assert watched(place, {BEAT_SECONDS: lease(1)}) == (True, BEAT_SECONDS)


def test_a_lease_that_stands_still_has_expired(place: LeasePlace) -> None:
    place.write(lease(41))
    assert watched(place, {}) == (False, EXPIRY_SECONDS)


def test_a_lease_that_is_removed_is_over(place: LeasePlace) -> None:
    place.write(lease())
    assert watched(place, {3.0: None}) == (False, 3.0)


def test_a_half_written_lease_is_watched_like_any_other(place: LeasePlace) -> None:
    place.write(b'{"owner": "fi')
    assert watched(place, {}) == (False, EXPIRY_SECONDS)
    place.write(b'{"owner": "fi')
    assert watched(place, {2.0: lease()}) == (True, 2.0)


def test_on_its_own_machine_the_process_decides_at_once(place: LeasePlace) -> None:
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        seat = replace(Seat.here(), pid=process.pid, started=stat[19])
        place.write(lease(seat=seat))
        assert watched(place, {}) == (True, 0.0)
        place.write(lease(seat=replace(seat, started="0")))
        assert watched(place, {}) == (False, 0.0), "its pid was used again"
        place.write(lease(seat=seat))
        process.kill()
        process.wait()
    assert watched(place, {}) == (False, 0.0)


def test_a_keeper_writes_a_shorter_lease_over_a_longer_one_and_removes_it(
    place: LeasePlace,
) -> None:
    place.write(lease() + b" " * 900)
    keeper = LeaseKeeper(place=place, owner="second")
    keeper.begin()
    written = FolderLease.parse(place.read() or b"")
    assert written == FolderLease(owner="second", seat=Seat.here())
    keeper.release()
    assert place.read() is None
