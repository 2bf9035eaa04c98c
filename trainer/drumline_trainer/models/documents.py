"""Documents that share a window, each as if it were alone in it.

Krell et al. 2021, "Efficient sequence packing without cross-contamination". A window of several
documents is several runs of neighbouring positions. A token attends to its own run alone, its
position counts from the run's begin, and no target is another run's: then outputs and gradients of
a document are those it has without the others.

No mask is made: attention is computed run by run, and what a mask would hide costs nothing.

Shapes: B batch, S sequence, Q and K positions of some queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

DocumentIds = npt.NDArray[np.int32]
"""Index of the document that each position belongs to, int32 [B, S], ascending along a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Documents of a micro-batch, over whole windows, even if a rank has part of them."""

    ids: DocumentIds
    """In the host's memory: it decides what is computed at all, and no GPU is waited for."""
    since_begin: Tensor
    """Positions of all tokens in their documents, int64 of shape B S, where the model is."""
    ends: Tensor
    """Ends of the runs, counted from the begin of the first window; int32 [runs + 1] from 0, on the
    model's device."""
    longest: int
    """Tokens of the longest run."""
    numbers: Tensor
    """Index of each token's run in the micro-batch, int64 [B, S], on the model's device. Padding
    has the number of runs."""
    places: Tensor | None = None
    """Positions of the windows that this rank has, int64 [S]. None: all."""

    @classmethod
    def of(
        cls,
        ids_BS: DocumentIds,
        positions_BS: npt.NDArray[np.int32],
        *,
        filled_B: npt.NDArray[np.int32] | None = None,
    ) -> Documents:
        """Build the documents from a data set's arrays in host memory.

        Args:
            ids_BS: document of each position.
            positions_BS: position within the document.
            filled_B: number of positions of each window before its padding; None: no padding.
        """
        # Phase 1: runs. Position 0 begins a run, and runs of all windows are numbered through the
        # micro-batch.
        begins = np.flatnonzero(positions_BS.reshape(-1) == 0)
        # int32, because the kernel for runs of different lengths takes its borders in this type.
        ends = np.append(begins, positions_BS.size).astype(np.int32)
        # Phase 2: numbers. A cumulative count of begins gives each token its run.
        numbers_BS = np.cumsum(positions_BS.reshape(-1) == 0).reshape(ids_BS.shape) - 1
        if filled_B is not None:
            # Padding of all windows shares one number. Experts skip it, attention computes it as a
            # run of its own.
            places_S = np.arange(ids_BS.shape[1], dtype=np.int32)
            numbers_BS[places_S >= filled_B[:, np.newaxis]] = len(begins)
        return cls(
            ids=ids_BS,
            # int64, because these positions index embeddings and rotary tables.
            since_begin=torch.from_numpy(positions_BS.astype(np.int64)),  # pyright: ignore[reportUnknownMemberType] - untyped in torch
            ends=torch.from_numpy(ends),  # pyright: ignore[reportUnknownMemberType] - untyped in torch
            # Taken on the host, so that no kernel call waits for the GPU.
            longest=int(np.diff(ends).max()),
            numbers=torch.from_numpy(numbers_BS),  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        )

    def pinned(self) -> Documents:
        """Return a copy in pinned memory, from which a GPU copies beside its work."""
        return replace(
            self,
            # Copies from pageable memory would wait for earlier work on the GPU.
            since_begin=self.since_begin.pin_memory(),
            ends=self.ends.pin_memory(),
            numbers=self.numbers.pin_memory(),
        )

    def to(self, device: torch.device) -> Documents:
        """Return a copy on this device."""
        since_begin, ends, numbers = (
            # `non_blocking` takes effect only from pinned memory. Order on the stream keeps the
            # copies safe.
            tensor.to(device, non_blocking=True)
            for tensor in (self.since_begin, self.ends, self.numbers)
        )
        return replace(self, since_begin=since_begin, ends=ends, numbers=numbers)

    def at(self, places_S: Tensor) -> Documents:
        """Return the documents for a rank that has the tokens at these places of the windows."""
        return replace(self, places=places_S)

    @property
    def runs_in_all(self) -> int:
        """Number of runs in the micro-batch, padding included."""
        return len(self.ends) - 1

    def own_numbers(self) -> Tensor:
        """Return the run numbers [B, S] of this rank's tokens."""
        return self.numbers if self.places is None else self.numbers[:, self.places]

    def positions(self, places_S: Tensor) -> Tensor:
        """Return positions in documents, [batch, sequence], of the tokens at places [sequence]."""
        return self.since_begin[:, places_S]

    def lengths(self, places_S: Tensor) -> Tensor:
        """Return the lengths of the tokens' documents, [batch, sequence], by places [sequence]."""
        sizes = self.ends.diff()
        # `output_size` is known. Without it, torch would read the sum of the sizes from the GPU.
        lengths = sizes.repeat_interleave(sizes, output_size=self.since_begin.numel())
        return lengths.view_as(self.since_begin)[:, places_S]

    def runs(self) -> list[list[slice]]:
        """Return the documents of each window, as ranges of positions."""
        # A change of the document's index begins a run. Indices ascend, so equal ones are
        # neighbours.
        begins = ([0, *(np.flatnonzero(np.diff(row)) + 1), len(row)] for row in self.ids)
        return [[slice(int(a), int(b)) for a, b in pairwise(row)] for row in begins]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOverlap:
    """Queries and keys of one document."""

    row: int
    queries: slice
    keys: slice


def document_overlaps(queries_BQ: DocumentIds, keys_BK: DocumentIds) -> Iterator[DocumentOverlap]:
    """Yield the parts of queries and keys that are of the same document of the same window.

    Args:
        queries_BQ: document of each query, int32 [B, Q].
        keys_BK: document of each key, int32 [B, K].
    """
    for row, (queries_Q, keys_K) in enumerate(zip(queries_BQ, keys_BK, strict=True)):
        # Documents in both parts only. A ring of context parallelism holds keys of positions that
        # no query here sees.
        shared = np.intersect1d(queries_Q, keys_K)
        # Indices ascend along a window, so each document is one span and a binary search finds it.
        spans = (
            zip(np.searchsorted(ids, shared), np.searchsorted(ids, shared, "right"), strict=True)
            for ids in (queries_Q, keys_K)
        )
        for queries, keys in zip(*spans, strict=True):
            yield DocumentOverlap(
                row=row, queries=slice(*map(int, queries)), keys=slice(*map(int, keys))
            )
