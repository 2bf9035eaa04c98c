from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.data.tar_samples import ending, tar_samples
from tests.unit.trainer.data.tars import write_tar

MEMBERS = [
    ("a/1.txt", b"one"),
    ("a/._1.txt", b"macOS"),
    ("a/1.en.txt", b"uno"),
    (f"a/{'long' * 40}.txt", b"x" * 2000),
    ("b/2.json", b"{}"),
    ("b/2.txt", b"two"),
]
KEYS = ["a/1", f"a/{'long' * 40}", "b/2"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "x.tar", MEMBERS)


def test_members_in_a_row_that_share_a_key_are_a_sample(path: Path) -> None:
    samples = [
        (each.key, {ending(member): each.content(member, most=3) for member in each.members})
        for each in tar_samples(path)
    ]
    assert [key for key, _ in samples] == KEYS
    assert samples[0][1] == {".txt": b"one", ".en.txt": b"uno"}
    assert samples[1][1] == {".txt": b"xxx"}  # at most so many bytes


def test_reading_goes_on_after_any_sample(path: Path) -> None:
    places = [each.after for each in tar_samples(path)]
    for number, offset in enumerate(places, start=1):
        rest = list(tar_samples(path, offset=offset))
        assert [each.key for each in rest] == KEYS[number:]
        assert [each.after for each in rest] == places[number:]


def test_a_damaged_header_is_no_end(path: Path) -> None:
    """The library takes it for one, and the rest would be missing without a word."""
    begin = next(each.after for each in tar_samples(path))
    content = bytearray(path.read_bytes())
    content[begin + 150] ^= 1  # within the checksum of a header
    path.write_bytes(content)
    with tarfile.open(path) as tar:
        assert len(tar.getmembers()) == 3
    with pytest.raises(ConfigError, match=f"no header of a member at byte {begin}"):
        list(tar_samples(path))


@pytest.mark.parametrize("left", [700, 1200, 5000])
def test_a_tar_that_is_cut_off_is_refused(path: Path, left: int) -> None:
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ConfigError, match="not a whole tar without compression"):
        [each.content(m, most=1 << 20) for each in tar_samples(path) for m in each.members]


def test_members_are_not_kept(tmp_path: Path) -> None:
    """A tar of small texts would take half of its bytes as objects."""
    path = write_tar(tmp_path / "a.tar", [(f"{number}.txt", b"x") for number in range(50)])
    kept = [(sample.key, len(vars(sample.tar)["members"])) for sample in tar_samples(path)]
    assert [key for key, _ in kept] == [str(number) for number in range(50)]
    assert max(count for _, count in kept) <= 2
