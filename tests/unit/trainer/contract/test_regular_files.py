"""Files that users name: regular ones, opened without waiting, read within a limit."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline_contract.regular_files import NotRegularError, open_regular, read_regular


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fsencode(path))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_refused_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for name in ("a", "link"):
        with pytest.raises(NotRegularError, match="not a regular file"):
            open_regular(tmp_path / name)


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("/dev/null")])
def test_a_device_is_refused(path: Path) -> None:
    with pytest.raises(NotRegularError):
        read_regular(path, limit=10)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    bind(tmp_path / "a")
    with pytest.raises(OSError, match=r"No such device|not a regular file"):
        open_regular(tmp_path / "a")


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", limit=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes") as refused:
        read_regular(tmp_path / "a", limit=4)
    assert refused.value.errno == errno.EFBIG
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", limit=4)
