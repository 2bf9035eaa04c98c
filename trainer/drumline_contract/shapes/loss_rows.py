"""How much of the logits the loss has in fp32 at once."""

from __future__ import annotations

CHUNK_ELEMENTS = 1 << 25
"""Logits: 128 MiB in fp32, and a second time while exponentials are taken."""


def rows_of_chunk(words: int) -> int:
    """Tokens whose logits are taken together, of so many words each."""
    return max(1, CHUNK_ELEMENTS // words)
