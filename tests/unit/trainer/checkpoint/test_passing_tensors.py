"""Tensors are taken out of a file's bytes in whatever pieces these come."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from drumline_trainer.checkpoint import passing_tensors
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.passing_tensors import PassingTensors, WantedTensor
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


def box_of(name: str) -> Box:
    """Rows of a tensor of which three lie in another file."""
    shape = tuple(TENSORS[name].shape)
    return Box(offsets=(3, *(0 for _ in shape[1:])) if shape else (), shape=shape)


def passing(*names: str) -> PassingTensors:
    wanted = {name: WantedTensor(dtype=TENSORS[name].dtype, box=box_of(name)) for name in names}
    return PassingTensors(wanted, file="f", longest_header=LONGEST)


def taken_out(file: bytes, *names: str, at_once: int = 0) -> Mapping[str, list[torch.Tensor]]:
    """The blocks of these tensors."""
    tensors = passing(*names)
    blocks: dict[str, list[torch.Tensor]] = {}
    size = at_once or len(FILE)
    for start in range(0, len(file), size):
        for block in tensors.feed(memoryview(file)[start : start + size]):
            known = blocks.setdefault(block.name, [])
            rows = sum(len(values) for values in known) if block.box.shape else 0
            assert block.box.offsets[:1] == ((3 + rows,) if block.box.shape else ())
            known.append(block.values)
    tensors.finish()
    return blocks


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
@pytest.mark.parametrize("at_once", [1, 7, 100, len(FILE)])
def test_what_is_wanted_is_taken_out_and_the_rest_passes_by(
    at_once: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing_tensors, "BLOCK_BYTES", block_bytes)
    blocks = taken_out(FILE, "d", "b", "c", at_once=at_once)
    assert {name: len(known) for name, known in blocks.items()} == {
        1: {"b": 5, "c": 1, "d": 3},
        20: {"b": 1, "c": 1, "d": 3},
        1 << 20: {"b": 1, "c": 1, "d": 1},
    }[block_bytes]
    assert torch.equal(blocks["c"][0], TENSORS["c"])
    assert torch.equal(torch.cat(blocks["b"]), TENSORS["b"])
    assert torch.equal(torch.cat(blocks["d"]), TENSORS["d"])


@pytest.mark.parametrize("before", [0, 1])
def test_a_block_within_one_piece_is_not_copied_unless_its_type_needs_another_place(
    before: int,
) -> None:
    piece = memoryview(bytes(before) + FILE)[before:]
    blocks = {block.name: block.values for block in passing("a", "b", "c", "d").feed(piece)}
    assert all(torch.equal(values, TENSORS[name]) for name, values in blocks.items())
    begin = np.frombuffer(piece, dtype=np.uint8).ctypes.data
    within = {name: 0 <= values.data_ptr() - begin < len(piece) for name, values in blocks.items()}
    # "c" and "d" have eight bytes an element and lie behind 20 bytes of "b".
    assert within == {name: not before and name in "ab" for name in TENSORS}


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xff" * 16,
        FILE[:8] + b"[" + FILE[9:],
        FILE.replace(b'"b"', b'"x"'),
        FILE.replace(b'"BF16"', b'"F16"').replace(b"]}}", b"]}} "),
        FILE.replace(b"[5,2]", b"[5,3]").replace(b"[5, 2]", b"[5, 3]"),
        FILE[:-40],
        FILE.replace(b"[48,68]", b"[68,88]"),
        FILE.replace(b"[48,68]", b"[48,1e999]").replace(b"]}}   ", b"]}}"),
    ],
    ids=[
        "a header without end",
        "no JSON",
        "another name",
        "another type",
        "another shape",
        "cut off",
        "one in another",
        "a place without end",
    ],
)
def test_what_is_not_verified_is_not_trusted(damaged: bytes) -> None:
    assert damaged != FILE
    with pytest.raises(CorruptCheckpointError, match=r"^f: "):
        taken_out(damaged, "b", "d")


def test_the_message_about_a_header_has_only_its_begin() -> None:
    """A header has megabytes, and the message goes into every rank's log."""
    header = b'{"' + b"x" * (LONGEST - 3) + b"\xff"
    with pytest.raises(CorruptCheckpointError) as damaged:
        taken_out(len(header).to_bytes(8, "little") + header, "b")
    assert len(header) > 250 > len(str(damaged.value))


def test_no_place_at_which_a_file_is_cut_off_keeps_a_restore_from_its_end() -> None:
    for end in range(len(FILE) - 1):
        with pytest.raises(CorruptCheckpointError, match=r"^f: . is missing"):
            taken_out(FILE[:end], "b", "d")


def test_a_header_longer_than_that_of_its_tensors_is_not_parsed() -> None:
    """Of 25 MB of `{}` Python makes 650 MB."""
    header = b"[" + b",".join([b"{}"] * LONGEST) + b"]"
    with pytest.raises(CorruptCheckpointError, match=rf"^f: a header of {len(header)} bytes"):
        taken_out(len(header).to_bytes(8, "little") + header, "b")


def test_a_header_is_no_longer_than_the_names_and_bounds_of_its_tensors_allow() -> None:
    names = ['a"\u20ac' * 99, "b"]
    tensors = {name: torch.empty((1,) * 8, dtype=torch.bfloat16) for name in names}
    assert len(file_header(tensors)) <= longest_header(names)
    assert longest_header(["b"] * 1000) < 400_000
