"""Boxes: parts of global tensors, used by initial weights and checkpoints.

A `Box` is an axis-aligned piece of a tensor: offsets and a shape. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Elements offsets[d] <= i < offsets[d] + shape[d] of every dimension d."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless offsets and shape have the same number of dimensions."""
        if len(self.offsets) != len(self.shape):
            raise ValueError("offsets and shape differ in their number of dimensions")

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a box without dimensions."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def ends(self) -> tuple[int, ...]:
        """First index past the box in every dimension."""
        return tuple(o + s for o, s in zip(self.offsets, self.shape, strict=True))

    def intersection(self, other: Box) -> Box | None:
        """Return the common part in global coordinates, or None."""
        starts = tuple(map(max, self.offsets, other.offsets))
        ends = tuple(map(min, self.ends, other.ends))
        if any(start >= end for start, end in zip(starts, ends, strict=True)):
            return None
        return Box(offsets=starts, shape=tuple(e - s for s, e in zip(starts, ends, strict=True)))

    def rows(self, start: int, stop: int) -> Box:
        """Return rows `start` to `stop` of the box, counted from its first.

        It needs a dimension.
        """
        return Box(
            offsets=(self.offsets[0] + start, *self.offsets[1:]),
            shape=(stop - start, *self.shape[1:]),
        )

    def slices_within(self, outer: Box) -> tuple[slice, ...]:
        """Return the index of this box in a tensor that holds `outer`."""
        return tuple(
            slice(o - base, o - base + size)
            for o, base, size in zip(self.offsets, outer.offsets, self.shape, strict=True)
        )


def tiles(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Return whether the boxes cover a tensor of this shape exactly once.

    Cost O(n log n) for row shards. Boxes that share rows are compared pairwise.
    """
    whole = Box(offsets=(0,) * len(shape), shape=tuple(shape))
    if sum(box.elements for box in boxes) != whole.elements:
        return False
    if any(whole.intersection(box) != box for box in boxes):
        return False
    if not shape:
        return True
    sharing_rows: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.offsets):
        sharing_rows = [other for other in sharing_rows if other.ends[0] > box.offsets[0]]
        if any(box.intersection(other) for other in sharing_rows):
            return False
        sharing_rows.append(box)
    return True
