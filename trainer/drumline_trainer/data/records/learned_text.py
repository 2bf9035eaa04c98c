"""A text of which a part is learned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearnedText:
    """Text of a document, before it is tokenized."""

    text: str
    learned: tuple[tuple[int, int], ...] | None = None
    """Start and stop of each learned part, in characters. None: all of it is learned."""
    prompt: str | None = None
    """Beginning of `text` that is not learned, of a prompt with one completion.

    The completion starts at the first token that is not in the tokens of the prompt alone.
    """
    framed: bool = False
    """The tokenizer adds its begin token and an end token. A chat template writes its own."""


TextRecord = tuple[LearnedText, ...]
"""The text of a record, or the chosen and the rejected text of a pair."""
