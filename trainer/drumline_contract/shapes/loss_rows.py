"""Size of the chunks in which the loss converts logits to fp32."""

from __future__ import annotations

CHUNK_ELEMENTS = 1 << 25
"""Logits: 128 MiB in fp32, and a second time while exponentials are taken."""


def rows_of_chunk(words: int) -> int:
    """Return the number of tokens per chunk, for a vocabulary of `words`."""
    return max(1, CHUNK_ELEMENTS // words)
