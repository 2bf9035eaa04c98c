"""Errors of a full disk name the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline_agent.processes.full_folders import has_no_room, mount_points, with_full_folder

MOUNTS = ["/", "/checkpoints", "/data"]


@pytest.mark.parametrize(
    ("error", "full", "named"),
    [
        (
            "OSError: [Errno 28] No space left on device",
            *(["/checkpoints"], "OSError: [Errno 28] No space left on /checkpoints"),
        ),
        (
            "OSError: [Errno 28] No space left on device: '/data/a/x.pt'",
            *([], "OSError: [Errno 28] No space left on /data: '/data/a/x.pt'"),
        ),
        (
            "SafetensorError: I/O error: No space left on device (os error 28)",
            *(["/", "/data"], "SafetensorError: I/O error: No space left on /data (os error 28)"),
        ),
        (
            "OSError: [Errno 122] Disk quota exceeded: '/checkpoints/x'",
            *(["/"], "OSError: [Errno 122] Disk quota exceeded on /checkpoints: '/checkpoints/x'"),
        ),
        ("OSError: [Errno 122] Disk quota exceeded", ["/data"], "Disk quota exceeded"),
        (
            "OSError: [Errno 30] Read-only file system: '/data/x'",
            *(["/"], "OSError: [Errno 30] Read-only file system on /data: '/data/x'"),
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:668] . unexpected pos 64 vs 0",
            *(["/checkpoints"], "No space left on /checkpoints: RuntimeError: [enforce fail at"),
        ),
        ("RuntimeError: unexpected pos 64 vs 0", [], "RuntimeError: unexpected pos 64 vs 0"),
        ("OSError: [Errno 28] No space left on device", [], "No space left on device"),
        ("ValueError: /data has no space", ["/data"], "ValueError: /data has no space"),
    ],
)
def test_a_full_folder_is_named(error: str, full: list[str], named: str) -> None:
    assert named in with_full_folder(error, mounts=lambda: MOUNTS, is_full=full.__contains__)


def test_the_file_systems_of_this_process_are_read(tmp_path: Path) -> None:
    assert "/" in mount_points()
    assert not has_no_room(str(tmp_path))
    assert not has_no_room("/nowhere")
    assert mount_points(tmp_path / "none") == []


def test_a_full_file_system_is_noticed() -> None:
    assert has_no_room("/sys/fs/cgroup") is False, "a kernel's file system has no blocks"


def test_a_read_only_file_system_is_never_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is packed without room, and was named for every disk that was full."""
    room = os.statvfs_result((4096, 4096, 100, 0, 0, 10, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _folder: room)
    assert not has_no_room("/image")
