"""Tensors are taken out of a file's bytes in whatever pieces these come."""

from __future__ import annotations

import pytest
import torch

from drumline_trainer.checkpoint.bucket.passing_tensors import PassingTensors
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.intervals import Interval
from drumline_trainer.checkpoint.manifest import Piece
from drumline_trainer.checkpoint.shard_file import longest_header
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.tensor_files.layout import file_chunks, file_header

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).view(4, 3),
    "b": torch.arange(10, dtype=torch.bfloat16).view(5, 2),
    "c": torch.tensor(7),
    "d": torch.arange(6, dtype=torch.float64).view(3, 2),
}
LONGEST = longest_header(TENSORS)
FILE = b"".join(bytes(chunk) for chunk in file_chunks(TENSORS))


def wanted(name: str, start: int = 0, stop: int | None = None) -> Interval:
    """These rows of a tensor."""
    whole = TENSORS[name]
    box = Box(offsets=(0,) * whole.dim(), shape=tuple(whole.shape))
    rows = box
    if whole.dim():
        stop = len(whole) if stop is None else stop
        rows = Box(offsets=(start, 0), shape=(stop - start, whole.shape[1]))
    piece = Piece(file="f", box=box)
    target = torch.empty(rows.shape, dtype=whole.dtype)
    return Interval(name=name, piece=piece, common=rows, target=target, target_box=rows)


def taken_out(file: bytes) -> int:
    """How much two tensors' worth of it is."""
    passing = PassingTensors([wanted("b"), wanted("d")], file="f", longest_header=LONGEST)
    passing.feed(memoryview(file))
    return len(passing.kept())


@pytest.mark.parametrize("size", [1, 7, 100, len(FILE)])
def test_what_is_wanted_is_kept_and_the_rest_passes_by(size: int) -> None:
    parts = [wanted("d"), wanted("b", 1, 3), wanted("b", 4, 5), wanted("c")]
    passing = PassingTensors(parts, file="f", longest_header=LONGEST)
    for start in range(0, len(FILE), size):
        passing.feed(memoryview(FILE)[start : start + size])
    kept = {id(interval): values for interval, values in passing.kept()}
    expected = [TENSORS["d"], TENSORS["b"][1:3], TENSORS["b"][4:5], TENSORS["c"]]
    for interval, values in zip(parts, expected, strict=True):
        assert torch.equal(kept[id(interval)], values)


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xff" * 16,
        FILE[:8] + b"[" + FILE[9:],
        FILE.replace(b'"b"', b'"x"'),
        FILE.replace(b"[5,2]", b"[5,3]").replace(b"[5, 2]", b"[5, 3]"),
        FILE[:-40],
        FILE.replace(b"[48,68]", b"[68,88]"),
    ],
    ids=[
        "a header without end",
        "no JSON",
        "another name",
        "another shape",
        "cut off",
        "one in another",
    ],
)
def test_what_is_not_verified_is_not_trusted(damaged: bytes) -> None:
    assert damaged != FILE
    with pytest.raises(CorruptCheckpointError, match=r"^f: "):
        taken_out(damaged)


def test_no_place_at_which_a_file_is_cut_off_keeps_a_restore_from_its_end() -> None:
    for end in range(len(FILE) - 1):
        with pytest.raises(CorruptCheckpointError, match=r"^f: . is missing"):
            taken_out(FILE[:end])


def test_a_header_longer_than_that_of_its_tensors_is_not_parsed() -> None:
    """Of 25 MB of `{}` Python makes 650 MB."""
    header = b"[" + b",".join([b"{}"] * LONGEST) + b"]"
    with pytest.raises(CorruptCheckpointError, match=rf"^f: a header of {len(header)} bytes"):
        taken_out(len(header).to_bytes(8, "little") + header)


def test_a_header_is_no_longer_than_the_names_and_bounds_of_its_tensors_allow() -> None:
    names = ['a"\u20ac' * 99, "b"]
    tensors = {name: torch.empty((1,) * 8, dtype=torch.bfloat16) for name in names}
    assert len(file_header(tensors)) <= longest_header(names)
    assert longest_header(["b"] * 1000) < 400_000
