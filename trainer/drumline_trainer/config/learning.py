"""Which weights of a model learn: patterns of names, as `trainable` and `freeze` have them."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import Final

from drumline_trainer.config.errors import ConfigError

_MOST_CHARACTERS: Final = 4096


def check_patterns(trainable: str | None, freeze: str | None) -> None:
    """Raise ConfigError unless at most one is there, and it has patterns."""
    if trainable is not None and freeze is not None:
        raise ConfigError("trainable: names what learns, and freeze what does not; use one of them")
    for field, text in (("trainable", trainable), ("freeze", freeze)):
        if text is None:
            continue
        if not _patterns(text):
            raise ConfigError(f"{field}: must name weights, such as 'output.*'; leave it out")
        if len(text) > _MOST_CHARACTERS:
            raise ConfigError(f"{field}: {len(text)} characters are over {_MOST_CHARACTERS}")


def learns(name: str, *, trainable: str | None, freeze: str | None) -> bool:
    """Whether a weight of this name does."""
    if trainable is not None:
        return _matches(name, trainable)
    return freeze is None or not _matches(name, freeze)


def unmatched(text: str, names: list[str]) -> list[str]:
    """Patterns that are no weight's, which are mistakes."""
    return [each for each in _patterns(text) if not any(fnmatchcase(name, each) for name in names)]


def _matches(name: str, text: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _patterns(text))


@functools.lru_cache(maxsize=16)
def _patterns(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (pattern.strip() for pattern in text.split(","))))
