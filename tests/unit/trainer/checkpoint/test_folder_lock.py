"""The lock of a checkpoint folder on a file system without flock."""

from __future__ import annotations

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from drumline_trainer.checkpoint import folder_lock
from drumline_trainer.checkpoint.folder_lock import locked
from tests.patience import HANG_SECONDS


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def without_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: object, _operation: int) -> None:
        raise OSError(request.param, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("without_flock")
def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    inside, entered = threading.Event(), threading.Event()
    order: list[str] = []

    def second() -> None:
        inside.wait(HANG_SECONDS)
        entered.set()
        with locked(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with locked(tmp_path):
        inside.set()
        assert entered.wait(HANG_SECONDS)
        order.append("first")
    thread.join(HANG_SECONDS)
    assert order == ["first", "second"]
    assert not (tmp_path / "lock.held").exists()


@pytest.mark.usefixtures("without_flock")
def test_the_lock_of_a_process_that_crashed_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "EXPIRY_SECONDS", 0.0)
    (tmp_path / "lock.held").write_bytes(b"of a process that crashed")
    with locked(tmp_path):
        assert (tmp_path / "lock.held").read_bytes() != b"of a process that crashed"
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]
