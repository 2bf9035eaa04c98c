"""From decoded JSON to frozen dataclasses: every key known, every value of its type."""

from __future__ import annotations

import difflib
import functools
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar

from drumline_trainer.config.errors import ConfigError

T = TypeVar("T")


def decode(cls: type[T], raw: object, *, path: str) -> T:
    """Decoded JSON as this dataclass; `path` locates it in errors. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{path or 'config'}: must be an object")
    values = typing.cast("dict[str, Any]", raw)
    hints = _hints(cls)
    known = {f.name: f for f in fields(cls)}  # pyright: ignore[reportArgumentType] - a dataclass
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"{path}{key}: unknown field{hint}")
    arguments: dict[str, Any] = {}
    for name, known_field in known.items():
        if name in values:
            arguments[name] = _value(hints[name], values[name], path=f"{path}{name}")
        elif known_field.default is MISSING and known_field.default_factory is MISSING:
            raise ConfigError(f"{path}{name}: required")
    return cls(**arguments)


_hints = functools.cache(typing.get_type_hints)
"""Cached, as evaluating annotations takes longest."""


def _value(kind: Any, value: Any, *, path: str) -> Any:
    if is_dataclass(kind):
        return decode(typing.cast("type[Any]", kind), value, path=f"{path}.")
    if isinstance(kind, types.UnionType):
        return None if value is None else _value(kind.__args__[0], value, path=path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        choices = [member.value for member in kind]
        if value not in choices:
            raise ConfigError(f"{path}: must be one of {', '.join(choices)}, not {value!r}")
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{path}: must be {kind.__name__}, not {type(value).__name__}")
    if kind is float and not (-1e300 < value < 1e300):
        raise ConfigError(f"{path}: must be finite")
    return value


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`base` with `overrides` applied, objects merged key by key."""
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)  # pyright: ignore[reportUnknownArgumentType] - JSON objects
        else:
            merged[key] = value
    return merged
