"""The error of a wrong configuration, and checks that several sections share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_ERROR_CHARS: Final = 1000
"""Errors repeat what was written, which may be as long as a user likes."""


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the field and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(message[:MAX_ERROR_CHARS])


def require_positive(values: Mapping[str, float]) -> None:
    """Raise ConfigError for the first value that is not greater than 0."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name}: must be greater than 0, not {value}")


def require_not_negative(values: Mapping[str, float]) -> None:
    """Raise ConfigError for the first value that is below 0."""
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"{name}: must not be negative, but is {value}")
