"""Trained tokens of a text, as spans of positions, such as the answers of an assistant.

Example: of the tokens 0..9 those at 2, 3, 4 and 7 are trained on. The spans are (2, 5) and (7, 8).
Before position 4 are two trained tokens, before position 9 four.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class LearnedSpans:
    """Spans that are ascending and apart. Lookups take the logarithm of their number."""

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]
    """Learned tokens before each span, and in all."""

    @classmethod
    def of(cls, pairs: npt.NDArray[np.integer]) -> LearnedSpans:
        """Make spans from an array of shape [spans, 2]: start and stop of each.

        Raises:
            ValueError: they are empty, overlap or descend.
        """
        edges = pairs.astype(np.int64).reshape(-1)
        starts, stops = edges[0::2], edges[1::2]
        # Touching spans are allowed: the start of one may equal the stop of the previous one.
        if (starts < 0).any() or (stops <= starts).any() or (starts[1:] < stops[:-1]).any():
            raise ValueError("spans must be ascending and must not overlap")
        sums = np.concatenate([[0], np.cumsum(stops - starts)])
        return cls(starts=starts, stops=stops, sums=sums)

    def before(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of trained tokens before each position, int64 as `positions`."""
        if not len(self.starts):
            return np.zeros_like(positions)
        # `begun` counts the spans that start at or before a position. Only the last one can contain
        # it.
        begun = np.searchsorted(self.starts, positions, side="right")
        last = np.maximum(begun - 1, 0)
        # Positions behind the span count all of its tokens.
        inside = np.minimum(positions, self.stops[last]) - self.starts[last]
        return np.where(begun > 0, self.sums[last] + inside, 0)

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return whether each token of start..stop-1 is trained on, bool [stop - start]."""
        # Counts before neighbouring positions differ by 1 where a token is trained on.
        return np.diff(self.before(np.arange(start, stop + 1))).astype(bool)


def runs_of(learned: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the spans of a mask bool [N], int64 [spans, 2]."""
    # False at both ends gives spans at the borders an edge. int8, because numpy's difference of
    # bools cannot tell a start from a stop.
    edges = np.diff(np.concatenate([[False], learned, [False]]).astype(np.int8))
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)], axis=1)


def moved(spans: Iterable[npt.NDArray[np.int64]], by: Iterable[int]) -> npt.NDArray[np.int64]:
    """Move the spans of each piece to where it lies, and join them; shape [spans, 2]."""
    shifted = [piece + offset for piece, offset in zip(spans, by, strict=True)]
    # The empty array gives the result its shape even without any span.
    return np.concatenate([np.empty((0, 2), dtype=np.int64), *shifted])
