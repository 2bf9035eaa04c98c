"""Copies through the program that runs in the pod, as a process of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from drumline_cli.claims import remote_program, transfer
from drumline_cli.claims.transfer import PART, CopyProgress, download, upload
from drumline_cli.errors import BadInput, NotAnswered

PROGRAM = Path(remote_program.__file__).read_text()
DATA = os.urandom(5 << 20)


def there(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *arguments]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "large").write_bytes(DATA)
    (folder / "deep" / "small").write_text("x")
    (folder / "empty").touch()
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_folder_is_copied_both_ways_and_complete_files_are_skipped(
    source: Path, tmp_path: Path
) -> None:
    claim, back = tmp_path / "claim", tmp_path / "back"
    assert upload(source, f"{claim}/a", there) == len(DATA) + 1
    assert contents(claim / "a") == {"large": DATA, "deep/small": b"x", "empty": b""}
    assert upload(source, f"{claim}/a", there) == 0
    (source / "deep" / "small").write_text("yy")
    assert upload(source, f"{claim}/a", there) == 2
    assert download(f"{claim}/a", back, there) == len(DATA) + 2
    assert contents(back) == contents(claim / "a")
    assert download(f"{claim}/a", back, there) == 0


def test_a_file_that_was_cut_off_is_continued(source: Path, tmp_path: Path) -> None:
    sent, received = tmp_path / "sent", tmp_path / "received"
    for target in (sent, received):
        (tmp_path / f"{target.name}{PART}").write_bytes(DATA[: 4 << 20])
    assert upload(source / "large", str(sent), there) == 1 << 20
    assert download(str(source / "large"), received, there) == 1 << 20
    assert sent.read_bytes() == received.read_bytes() == DATA
    assert not list(tmp_path.glob(f"*{PART}"))


def test_a_part_of_another_file_is_not_continued(source: Path, tmp_path: Path) -> None:
    for name in ("sent", "received"):
        (tmp_path / f"{name}{PART}").write_bytes(b"another file")
    upload(source / "large", str(tmp_path / "sent"), there)
    download(str(source / "large"), tmp_path / "received", there)
    assert (tmp_path / "sent").read_bytes() == (tmp_path / "received").read_bytes() == DATA


def test_a_connection_that_breaks_is_made_again(source: Path, tmp_path: Path) -> None:
    """A receiver ends after 2 MiB at most (a pipe holds 64 KiB), a sender after 2 MiB."""
    chunks = {"receive": 32, "send": 2}

    def cut(arguments: Sequence[str]) -> list[str]:
        count = chunks.get(arguments[0])
        program = PROGRAM.replace("while True:", f"for _ in range({count}):") if count else PROGRAM
        return [sys.executable, "-c", program, *arguments]

    upload(source / "large", str(tmp_path / "sent"), cut)
    download(str(source / "large"), tmp_path / "received", cut)
    assert (tmp_path / "sent").read_bytes() == (tmp_path / "received").read_bytes() == DATA


def test_a_file_keeps_its_name_in_a_folder(source: Path, tmp_path: Path) -> None:
    download(str(source / "large"), tmp_path, there)
    assert (tmp_path / "large").read_bytes() == DATA


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        upload(tmp_path / "none", str(tmp_path / "target"), there)
    with pytest.raises(NotAnswered, match="does not exist"):
        download(str(tmp_path / "none"), tmp_path / "target", there)


def test_a_pod_cannot_name_a_file_outside_of_the_folder(tmp_path: Path) -> None:
    program = 'print(\'{"path": "../evil", "size": 1, "changed": 1}\')'
    with pytest.raises(NotAnswered, match="outside"):
        download("/claim", tmp_path / "target", lambda _: [sys.executable, "-c", program])


@pytest.mark.parametrize(
    "listing",
    [
        "no JSON",
        "[1]",
        "[" * 10_000,
        '{"path": "a"}',
        '{"path": "a", "size": null, "changed": 1}',
        '{"path": "a", "size": -1, "changed": 1}',
        '{"path": "a", "size": 1, "changed": 1e99}',
        r'{"path": "a\u0000", "size": 1, "changed": 1}',
    ],
)
def test_a_listing_that_cannot_be_read_is_one_sentence(tmp_path: Path, listing: str) -> None:
    with pytest.raises(NotAnswered, match="the pod"):
        download("a", tmp_path, lambda _: [sys.executable, "-c", f"print({listing!r})"])
    assert contents(tmp_path) == {}


def test_a_pod_that_writes_without_an_end_fills_neither_memory_nor_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MAX_LISTING", 1 << 16)
    endless = [sys.executable, "-c", "while True: print('x' * 4096)"]
    with pytest.raises(NotAnswered, match="more than 65536 bytes"):
        download("a", tmp_path, lambda _: endless)
    listing = 'print(\'{"path": "a", "size": 5, "changed": 1}\')'

    def run(arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", listing] if arguments[0] == "list" else endless

    assert download("there", tmp_path / "here", run) == 5
    assert contents(tmp_path / "here") == {"a": b"xxxxx"}


def test_the_time_left_is_shown_once_the_rate_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for moved, shown in ((1, False), (1 << 20, True)):
        CopyProgress(total=10 << 20, verb="sent").at(moved, moved=moved)
        assert ("s left" in capsys.readouterr().err) is shown
