"""Trainable weights of a model, selected by patterns of names (`trainable`, `freeze`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from drumline_contract.config.errors import ConfigError
from drumline_contract.config.name_patterns import NamePatterns

_MAX_CHARACTERS: Final = 4096
_MAX_PATTERNS: Final = 32
_MAX_OF_A_PATTERN: Final = 64
"""Characters; names of weights are shorter."""


def check_patterns(trainable: str | None, freeze: str | None) -> None:
    """Raise ConfigError unless at most one is there, and its patterns are few and short."""
    if trainable is not None and freeze is not None:
        raise ConfigError("trainable: names what learns, and freeze what does not; use one of them")
    for field, text in (("trainable", trainable), ("freeze", freeze)):
        if text is not None:
            _check(field, text)


def _check(field: str, text: str) -> None:
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"{field}: {len(text)} characters are over {_MAX_CHARACTERS}")
    patterns = patterns_of(text)
    if not patterns:
        raise ConfigError(f"{field}: must name weights, such as 'output.*'; leave it out")
    if len(patterns) > _MAX_PATTERNS:
        raise ConfigError(
            f"{field}: {len(patterns)} patterns are over {_MAX_PATTERNS}; let * and ? stand for"
            " what the names differ in"
        )
    longest = max(map(len, patterns))
    if longest > _MAX_OF_A_PATTERN:
        raise ConfigError(
            f"{field}: a pattern of {longest} characters is over {_MAX_OF_A_PATTERN}, and no"
            " weight's name is that long"
        )


def learns(name: str, *, trainable: str | None, freeze: str | None) -> bool:
    """Return whether the weight of this name is trained.

    Args:
        name: name of the weight.
        trainable: pattern of names that are trained. None: all.
        freeze: pattern of names that are not trained. None: none.
    """
    if trainable is not None:
        return name_patterns(trainable).matches(name)
    return freeze is None or not name_patterns(freeze).matches(name)


def unmatched(text: str, names: Iterable[str]) -> list[str]:
    """Return the patterns that match no weight. Such a pattern is a mistake."""
    return name_patterns(text).unused(names)


@functools.lru_cache(maxsize=16)
def name_patterns(text: str) -> NamePatterns:
    """Compile the patterns of a checked field."""
    return NamePatterns(patterns_of(text))


def patterns_of(text: str) -> tuple[str, ...]:
    """Return each pattern once, in their order."""
    patterns = (pattern.strip() for pattern in text.split(","))
    return tuple(dict.fromkeys(filter(None, patterns)))
