"""Continued prompts of an evaluation (`evaluation.prompts`), as one text in a job's status.

    [40,["The sky is","blue and"],["2 + 2 =","4"]]     after step 40

JSON in ASCII, so that its length bounds its bytes. Texts are cut until all prompts fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

from drumline_contract.plain_text import plain

MOST_PROMPTS: Final = 16
"""Prompts of a run."""
MAX_ANSWERS_CHARS: Final = 7000
"""Length of the text. A rank's line, in which quotes and backslashes are escaped, holds it."""
_LENGTHS: Final = (400, 200, 100, 50, 25, 12)
"""Characters of a prompt or an answer: the first that make all fit."""
_CUT: Final = "\u2026"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedPrompts:
    """Prompts, each with how the model continues it."""

    step: int = 0
    """Finished optimizer steps."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Prompt and continuation of each, cut to the bounds."""


def encode(step: int, pairs: Iterable[tuple[str, str]]) -> str:
    """Return the text, of at most MAX_ANSWERS_CHARS. Without prompts it is empty."""
    known = [(plain(prompt), plain(answer)) for prompt, answer in pairs]
    text = ""
    for length in _LENGTHS if known else ():
        cut = [[_cut(each, length) for each in pair] for pair in known]
        text = json.dumps([step, *cut], separators=(",", ":"))
        if len(text) <= MAX_ANSWERS_CHARS:
            return text
    return ""


def decode(text: str) -> ContinuedPrompts:
    """Read `encode`'s text, which a pod may have written. Skip anything else."""
    try:
        raw: object = json.loads(text) if len(text) <= MAX_ANSWERS_CHARS else None
    except (ValueError, RecursionError):
        raw = None
    values = cast("list[object]", raw) if isinstance(raw, list) else []
    if not values or not isinstance(values[0], int):
        return ContinuedPrompts()
    return ContinuedPrompts(step=values[0], pairs=tuple(_pairs(values[1:])))


def _pairs(raw: list[object]) -> Iterable[tuple[str, str]]:
    for pair in raw[:MOST_PROMPTS]:
        match pair:
            case [str(prompt), str(answer)]:
                yield plain(prompt), plain(answer)
            case _:
                continue


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + _CUT
