"""The pieces of every tensor, however ranks grouped them."""

from __future__ import annotations

import random

import pytest

from drumline_trainer.checkpoint.errors import SaveError
from drumline_trainer.checkpoint.manifest import FileRecord, Piece
from drumline_trainer.checkpoint.rank_report import SliceGroup, WrittenFile
from drumline_trainer.checkpoint.tensor_table import TensorTable
from drumline_trainer.sharding.boxes import Box

SHAPE = (64, 2)


def rows(start: int, stop: int) -> Box:
    return Box(offsets=(start, 0), shape=(stop - start, 2))


def file(name: str, *groups: tuple[Box, str], dtype: str = "F32") -> WrittenFile:
    """Groups of tensors with one letter each."""
    return WrittenFile(
        name=name,
        record=FileRecord(size_bytes=1, digest="0" * 32),
        groups=tuple(
            SliceGroup(dtype=dtype, shape=SHAPE, box=box, names="\n".join(sorted(names)))
            for box, names in groups
        ),
    )


def test_groups_that_equal_each_other_share_one_record() -> None:
    table = TensorTable()
    for rank in range(4):
        table.add([file(f"{rank}", (rows(rank, rank + 1), "abc"))])
    records = table.records()
    assert records["a"] is records["b"] is records["c"]
    assert [piece.file for piece in records["a"].pieces] == ["0", "1", "2", "3"]


def test_a_group_of_some_splits_the_others_off() -> None:
    table = TensorTable()
    table.add([file("0", (rows(0, 1), "abcd"))])
    table.add([file("1", (rows(1, 2), "bd")), file("2", (rows(1, 2), "a"))])
    files = {
        name: "".join(p.file for p in record.pieces) for name, record in table.records().items()
    }
    assert files == {"a": "02", "b": "01", "c": "0", "d": "01"}


@pytest.mark.parametrize("seed", range(30))
def test_however_tensors_are_grouped_each_gets_its_own_pieces(seed: int) -> None:
    choice = random.Random(seed)
    table = TensorTable()
    expected: dict[str, list[Piece]] = {}
    for number in range(12):
        names = choice.sample("abcdefgh", choice.randint(1, 8))
        cut = choice.randint(0, len(names))
        written = file(
            f"{number}",
            *(
                (rows(number, number + width), "".join(part))
                for width, part in ((1, names[:cut]), (2, names[cut:]))
                if part
            ),
        )
        table.add([written])
        for group in written.groups:
            for name in group.names.split("\n"):
                expected.setdefault(name, []).append(Piece(file=written.name, box=group.box))
    assert {name: list(r.pieces) for name, r in table.records().items()} == expected


def test_ranks_that_disagree_on_a_tensor_are_refused() -> None:
    for names in ("ab", "a"):
        table = TensorTable()
        table.add([file("0", (rows(0, 1), "ab"))])
        with pytest.raises(SaveError, match=r"F32.*BF16"):
            table.add([file("1", (rows(1, 2), names), dtype="BF16")])
