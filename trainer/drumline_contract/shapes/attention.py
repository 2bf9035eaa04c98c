"""Extent of attention: the keys of each query, and work repeated on tensor ranks. No torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from drumline_contract.config import ModelConfig

_LEAST_RUN = 512
"""Queries that are computed at once where a window is narrower: small products waste a device."""


def attention_runs(length: int, window: int) -> Iterator[tuple[int, int, int]]:
    """Split queries into runs. Yield begin, end and the first visible key; the last is end - 1.

    Args:
        length: length of the sequence, in positions.
        window: number of positions that a query sees; `length` for all earlier ones.
    """
    run = _LEAST_RUN if window >= length else max(window, _LEAST_RUN)
    for begin in range(0, length, run):
        yield begin, min(begin + run, length), max(0, begin - window + 1)


def scores_computed(length: int, window: int | None) -> int:
    """Count the pairs of a query and a key of one head and sequence, masked ones included."""
    seen = length if window is None else min(window, length)
    return sum((end - begin) * (end - first) for begin, end, first in attention_runs(length, seen))


@functools.lru_cache(maxsize=1024)
def computed_by_ranks(model: ModelConfig, *, tensor: int) -> ModelConfig:
    """Return the model that `tensor` ranks hold and compute together. Divide it by `tensor`.

    With fewer key-value heads than ranks, each rank has one.
    """
    return model if model.kv_heads >= tensor else replace(model, kv_heads=tensor)


def shares_heads(model: ModelConfig, degree: int) -> bool:
    """Return whether `degree` tensor ranks can divide the heads evenly.

    Each rank needs the same number of heads. It has some of the key-value heads, or, if there are
    more ranks than these, the one that its queries need.
    """
    own, fewer = model.kv_heads % degree == 0, degree % model.kv_heads == 0
    return model.heads % degree == 0 and (own or fewer)
