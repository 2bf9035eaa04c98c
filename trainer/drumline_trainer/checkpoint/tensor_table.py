"""The pieces of each tensor, from the reports of all ranks.

Tensors with the same pieces are one class and share their record. With FSDP all matrices of one
shape are cut alike. A report's group that equals a class costs one look-up, however many names it
has. So 1,024 ranks and 3,411 tensors take 10,000 pieces and not 3.5 million. If ranks group names
differently, a class is split into those with the new piece and those without.

Example: rank 0 reports rows 0-3 of {a, b}; rank 1 rows 4-7 of {a}, and rows 4-7 of {b} in its file
of unchanged tensors. The class {a, b} is split into {a} and {b}, each with two pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drumline_trainer.checkpoint.errors import SaveError
from drumline_trainer.checkpoint.manifest import Piece, TensorRecord
from drumline_trainer.checkpoint.rank_report import SliceGroup, WrittenFile


@dataclass(slots=True, kw_only=True)
class _AlikeTensors:
    """Tensors with the same pieces so far."""

    dtype: str
    shape: tuple[int, ...]
    names: list[str]
    """Sorted."""
    pieces: list[Piece]


class TensorTable:
    """Filled report by report."""

    def __init__(self) -> None:
        self._by_names: dict[str, _AlikeTensors] = {}
        self._of: dict[str, _AlikeTensors] = {}

    def add(self, files: Iterable[WrittenFile]) -> None:
        """Add the files of one rank.

        Raises:
            SaveError: ranks disagree on a tensor's type or shape.
        """
        for file in files:
            for group in file.groups:
                self._add(group, Piece(file=file.name, box=group.box))

    def records(self) -> dict[str, TensorRecord]:
        """Return the records by name. Tensors of one class share a record."""
        records: dict[str, TensorRecord] = {}
        for same in self._by_names.values():
            record = TensorRecord(dtype=same.dtype, shape=same.shape, pieces=tuple(same.pieces))
            records |= dict.fromkeys(same.names, record)
        return records

    def _add(self, group: SliceGroup, piece: Piece) -> None:
        # The usual case: ranks group names alike, so one look-up covers thousands of tensors.
        known = self._by_names.get(group.names)
        if known is not None:
            _check_alike(known, group)
            known.pieces.append(piece)
            return
        # Otherwise sort the names by the class that they belong to so far.
        members: dict[int, list[str]] = {}
        for name in group.names.split("\n"):
            members.setdefault(id(self._of.get(name)), []).append(name)
        for names in members.values():
            same = self._of.get(names[0])
            if same is None:
                fresh = _AlikeTensors(
                    dtype=group.dtype, shape=group.shape, names=names, pieces=[piece]
                )
                self._keep(fresh)
                continue
            _check_alike(same, group)
            # Some tensors of the class lack this piece: they stay in the old class.
            if len(names) < len(same.names):
                same = self._split(same, names)
            same.pieces.append(piece)

    def _split(self, whole: _AlikeTensors, names: list[str]) -> _AlikeTensors:
        """Split these names off as a class of their own."""
        taken = set(names)
        del self._by_names["\n".join(whole.names)]
        whole.names = [name for name in whole.names if name not in taken]
        self._by_names["\n".join(whole.names)] = whole
        part = _AlikeTensors(
            dtype=whole.dtype, shape=whole.shape, names=names, pieces=list(whole.pieces)
        )
        self._keep(part)
        return part

    def _keep(self, same: _AlikeTensors) -> None:
        self._by_names["\n".join(same.names)] = same
        self._of |= dict.fromkeys(same.names, same)


def _check_alike(known: _AlikeTensors, group: SliceGroup) -> None:
    if (known.dtype, known.shape) != (group.dtype, group.shape):
        raise SaveError(
            f"{known.names[0]} is {(known.dtype, known.shape)} on one rank and"
            f" {(group.dtype, group.shape)} on another"
        )
