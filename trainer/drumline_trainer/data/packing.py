"""Packing of documents into windows with little padding and no cuts: best fit, decreasing.

Ding et al. 2024, "Fewer truncations improve language modeling": the longest document first, each
into the fullest window with enough free space. The free spaces of windows are the bits of a number,
so a shift finds the smallest one that is enough, without a search.

Example, windows of 8: documents of 5, 4, 3 and 2. 5 opens a window (3 free), 4 another (4 free), 3
fills the first, 2 goes to the second, which keeps 2 free.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt


def best_fit(lengths: npt.NDArray[np.int64], *, capacity: int) -> list[list[int]]:
    """Assign documents to windows by best fit.

    Cost: O(n log n), and for each document a scan of at most capacity / 64 machine words.

    Args:
        lengths: lengths of the documents in tokens, each from 1 to `capacity`.
        capacity: tokens of a window.
    """
    windows: list[list[int]] = []
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    """Windows by their free space."""
    rooms = 0
    # Stable, so equal lengths keep their order and all ranks build the same windows.
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        # Bit k of `enough` stands for windows with `length + k` free positions.
        enough = rooms >> length
        if enough:
            # The lowest set bit is the tightest fit. Python computes it on integers of any size.
            room = length + (enough & -enough).bit_length() - 1
            # The window that was added last is taken, which costs O(1).
            window = waiting[room].pop()
            if not waiting[room]:
                rooms &= ~(1 << room)
            windows[window].append(document)
        else:
            room, window = capacity, len(windows)
            windows.append([document])
        left = room - length
        if left:
            waiting[left].append(window)
            rooms |= 1 << left
    return windows
