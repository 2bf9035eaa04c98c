"""Kernels beside checkpoints, in a folder and in a bucket."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.checkpoint.errors import CheckpointError
from drumline_trainer.compiled_kernels import places
from drumline_trainer.compiled_kernels.places import PROGRAMS, KernelPlace, kernel_place

NAME = "0" * 32 + "/0-0.kernels"


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> KernelPlace:
    placement = Placement(rank=0, world_size=1)
    beside = tmp_path if request.param == "folder" else request.getfixturevalue("url")
    place = kernel_place(placement.saving_to(beside))
    assert place is not None
    return place


def test_a_file_is_read_back_and_replaced(place: KernelPlace) -> None:
    assert place.read(NAME, limit=100) is None
    for body in (b"first", b"second"):
        place.write(NAME, body)
        assert place.read(NAME, limit=100) == body
    assert NAME in place.where(NAME)


def test_a_large_file_is_not_read(place: KernelPlace) -> None:
    place.write(NAME, b"12345")
    with pytest.raises((CheckpointError, OSError), match="larger than 4 bytes"):
        place.read(NAME, limit=4)


def test_programs_do_not_pile_up(place: KernelPlace) -> None:
    names = [f"{number:032x}/{stage}-{stage}.kernels" for number in range(7) for stage in (0, 1)]
    for name in names:
        place.write(name, b"")
    place.prune()
    left = [name for name in names if place.read(name, limit=1) is not None]
    assert len(left) == 2 * PROGRAMS


def test_without_checkpoints_there_is_no_place() -> None:
    assert kernel_place(Placement(rank=0, world_size=1)) is None


def folder(tmp_path: Path) -> KernelPlace:
    place = kernel_place(Placement(rank=0, world_size=1, checkpoint_folder=tmp_path))
    assert place is not None
    return place


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / NAME
    path.parent.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"theirs")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError):
        folder(tmp_path).read(NAME, limit=100)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        folder(tmp_path).read(NAME, limit=100)


def test_what_a_killed_rank_was_writing_is_removed_after_an_hour(tmp_path: Path) -> None:
    program = (tmp_path / "kernels" / NAME).parent
    program.mkdir(parents=True)
    left, fresh, theirs = f".0-0.kernels.{'a' * 16}", f".0-0.kernels.{'b' * 16}", ".bashrc"
    for name in (left, fresh, theirs):
        (program / name).touch()
    for name in (left, theirs):
        os.utime(program / name, (0, 0))
    folder(tmp_path).write(NAME, b"")
    assert names_in(program) == {fresh, theirs, "0-0.kernels"}


@pytest.mark.parametrize("linked", ["kernels", f"kernels/{NAME.split('/', maxsplit=1)[0]}"])
def test_a_folder_that_is_a_link_is_neither_read_nor_written_nor_pruned(
    linked: str, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    old = [theirs / f"{number:032x}/0-0.kernels" for number in range(PROGRAMS + 2)]
    for file in [*old, theirs / "0-0.kernels", theirs / f".0-0.kernels.{'a' * 16}"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"theirs")
        os.utime(file, (0, 0))
    before = names_in(theirs)
    claim = tmp_path / "claim"
    (claim / linked).parent.mkdir(parents=True)
    (claim / linked).symlink_to(theirs)
    place = folder(claim)
    with pytest.raises(OSError, match=re.escape(linked.rsplit("/", maxsplit=1)[-1])):
        place.read(NAME, limit=100)
    with pytest.raises(OSError, match=re.escape(linked.rsplit("/", maxsplit=1)[-1])):
        place.write(NAME, b"ours")
    with suppress(OSError):
        place.prune()
    assert names_in(theirs) == before
    assert {file.read_bytes() for file in old} == {b"theirs"}


def test_what_is_not_a_kernel_s_stays_in_a_program_s_folder(tmp_path: Path) -> None:
    place = folder(tmp_path)
    for number in range(PROGRAMS + 1):
        place.write(f"{number:032x}/0-0.kernels", b"")
        (tmp_path / "kernels" / f"{number:032x}" / "notes").touch()
        os.utime(tmp_path / "kernels" / f"{number:032x}", (number, number))
    oldest = tmp_path / "kernels" / f"{0:032x}"
    place.prune()
    assert names_in(oldest) == {"notes"}


def names_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_of_a_folder_the_oldest_programs_go(tmp_path: Path) -> None:
    place = folder(tmp_path)
    for number in range(PROGRAMS + 2):
        place.write(f"{number:032x}/0-0.kernels", b"")
        os.utime(tmp_path / "kernels" / f"{number:032x}", (number, number))
    (tmp_path / "kernels" / "somebody's").mkdir()
    place.prune()
    assert names_in(tmp_path / "kernels") == {
        f"{number:032x}" for number in range(2, PROGRAMS + 2)
    } | {"somebody's"}


def test_of_a_place_that_strangers_have_filled_a_part_is_looked_at(
    place: KernelPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_MAX_ENTRIES", PROGRAMS + 2)
    names = [f"{number:032x}/0-0.kernels" for number in range(2 * PROGRAMS + 2)]
    for name in names:
        place.write(name, b"")
    place.prune()
    left = [name for name in names if place.read(name, limit=1) is not None]
    assert len(left) == len(names) - 2
