"""What attention computes: which keys for which queries, what tensor ranks do twice. No torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from drumline_contract.config import ModelConfig

_LEAST_RUN = 512
"""Queries that are computed at once where a window is narrower: small products waste a device."""


def attention_runs(length: int, window: int) -> Iterator[tuple[int, int, int]]:
    """Queries in runs: begin, end, and the first key that one of them sees; the last is end - 1.

    Args:
        length: of the sequence.
        window: how many positions a query sees; the whole length where all before it.
    """
    run = _LEAST_RUN if window >= length else max(window, _LEAST_RUN)
    for begin in range(0, length, run):
        yield begin, min(begin + run, length), max(0, begin - window + 1)


def scores_computed(length: int, window: int | None) -> int:
    """Pairs of a query and a key of one head and sequence, masked ones included."""
    seen = length if window is None else min(window, length)
    return sum((end - begin) * (end - first) for begin, end, first in attention_runs(length, seen))


@functools.lru_cache(maxsize=1024)
def computed_by_ranks(model: ModelConfig, *, tensor: int) -> ModelConfig:
    """What so many tensor ranks hold and compute together: divided by their number, one's share.

    With fewer key-value heads than ranks, each has one.
    """
    return model if model.kv_heads >= tensor else replace(model, kv_heads=tensor)


def shares_heads(model: ModelConfig, degree: int) -> bool:
    """Whether so many tensor ranks have as many heads each, and key-value heads that serve them.

    Each has some of these, or with fewer of them than ranks the one that its queries need.
    """
    own, fewer = model.kv_heads % degree == 0, degree % model.kv_heads == 0
    return model.heads % degree == 0 and (own or fewer)
