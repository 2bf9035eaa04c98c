"""Reading plan of a rank: the parts of stored pieces that its own shards cover.

Example: two ranks wrote rows 0-3 and 4-7 of a tensor; four ranks restore two rows each. Rank 2
holds rows 4-5, so its plan has one interval: rows 4-5 of the second file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from drumline_trainer.checkpoint.manifest import Manifest, Piece
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interval:
    """Copy `common` from a stored piece into a local shard."""

    name: str
    piece: Piece
    common: Box
    target: Tensor
    target_box: Box


def reading_plan(manifest: Manifest, slices: Sequence[TensorSlice]) -> dict[str, list[Interval]]:
    """Return the intervals that this rank reads, by file, so that each file is opened once."""
    plan: dict[str, list[Interval]] = {}
    overlaps: dict[tuple[int, Box], list[tuple[Piece, Box]]] = {}
    for local in slices:
        pieces = manifest.tensors[local.name].pieces
        key = (id(pieces), local.box)
        if key not in overlaps:  # thousands of tensors share their pieces
            common_boxes = ((piece, piece.box.intersection(local.box)) for piece in pieces)
            overlaps[key] = [(piece, common) for piece, common in common_boxes if common]
        for piece, common in overlaps[key]:
            interval = Interval(
                name=local.name,
                piece=piece,
                common=common,
                target=local.tensor.detach(),
                target_box=local.box,
            )
            plan.setdefault(piece.file, []).append(interval)
    return plan
