"""From decoded JSON to frozen dataclasses: every key known, every value of its type and bounded.

The JSON is a tenant's: whatever it holds, decoding ends in a value or in a ConfigError, after work
that depends on the schema and not on the values.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from drumline_contract.config.bounds import AtMost
from drumline_contract.config.errors import ConfigError

T = TypeVar("T")
_MAX_SHOWN: Final = 64
"""Maximum number of characters of a key or a value that an error repeats. Longer keys get no hint.
"""
_MAX_FLOAT: Final = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldKind:
    """Type, nullability and bound of one field of a section."""

    type: type[Any]
    nullable: bool
    limit: int | None
    """Largest value of an integer field. None: not an integer."""


def decode(cls: type[T], raw: object, *, path: str) -> T:
    """Build an instance of a dataclass from decoded JSON.

    Args:
        cls: the dataclass.
        raw: the decoded JSON object.
        path: prefix of field names in errors, such as `model.`.

    Raises:
        ConfigError: a field is unknown, required, or has a bad value.
    """
    arguments = decode_fields(cls, raw, path=path)
    # Required fields are checked after values, so that a wrong value is named first.
    for field in fields(cls):  # pyright: ignore[reportArgumentType] - a dataclass
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if field.name not in arguments and not optional:
            raise ConfigError(f"{path}{field.name}: required")
    return cls(**arguments)


def decode_fields(cls: type[Any], raw: object, *, path: str) -> dict[str, Any]:
    """Decode the fields of a dataclass that a JSON object has, each on its own.

    Raises:
        ConfigError: `raw` is not an object, a field is unknown, or a value is bad.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{path.rstrip('.') or 'config'}: must be an object")
    values = typing.cast("dict[str, Any]", raw)
    kinds = field_kinds(cls)
    # Unknown keys are errors: a typing error would otherwise train with a default.
    for key in values:
        if key not in kinds:
            raise ConfigError(f"{path}{_shown(key)}: unknown field{_hint(key, list(kinds))}")
    return {
        name: _value(kind, values[name], path=f"{path}{name}")
        for name, kind in kinds.items()
        if name in values
    }


def differing(section: Any) -> dict[str, Any]:
    """Return the settings of a section that differ from their defaults. `decode` restores them."""
    values: dict[str, Any] = {}
    for field in fields(section):
        value = getattr(section, field.name)
        # A default of a factory is a new object at each call.
        if field.default_factory is not MISSING:
            default: Any = field.default_factory()
        else:
            default = field.default
        if value != default:
            values[field.name] = differing(value) if is_dataclass(value) else value
    return values


@functools.cache
def field_kinds(cls: type[Any]) -> dict[str, FieldKind]:
    """Return the kind of every field of a section, by name.

    The result is cached because evaluating annotations is slow.
    """
    return {
        name: _kind_of(hint)
        for name, hint in typing.get_type_hints(cls, include_extras=True).items()
    }


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides` applied, merging objects key by key.

    The recursion is never deeper than `base`, so a deeply nested override cannot exhaust the stack.
    """
    merged = dict(base)
    for key, value in overrides.items():
        # Recursion follows `base`, so the depth of the input does not matter.
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)  # pyright: ignore[reportUnknownArgumentType] - JSON objects
        else:
            merged[key] = value
    return merged


def _kind_of(hint: Any) -> FieldKind:
    nullable = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    inner = typing.get_args(hint)[0] if nullable else hint
    bounds = [mark.limit for mark in typing.get_args(inner)[1:] if isinstance(mark, AtMost)]
    plain: Any = typing.get_args(inner)[0] if bounds else inner
    return FieldKind(type=plain, nullable=nullable, limit=bounds[0] if bounds else None)


def _value(kind: FieldKind, value: Any, *, path: str) -> Any:
    if value is None and kind.nullable:
        return None
    if is_dataclass(kind.type):
        return decode(kind.type, value, path=f"{path}.")
    if issubclass(kind.type, StrEnum):
        return _member(kind.type, value, path=path)
    return _scalar(kind, value, path=path)


def _member(choices: type[StrEnum], value: Any, *, path: str) -> StrEnum:
    if not isinstance(value, str) or value not in [member.value for member in choices]:
        shown = _shown(value) if isinstance(value, str) else type(value).__name__
        raise ConfigError(f"{path}: must be one of {', '.join(choices)}, not {shown!r}")
    return choices(value)


def _scalar(kind: FieldKind, value: Any, *, path: str) -> Any:
    # bool is an int in Python, but true is no number in a configuration.
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if kind.type is float and (is_integer or isinstance(value, float)):
        if not -_MAX_FLOAT < value < _MAX_FLOAT:  # before float(): an integer may be of any size
            raise ConfigError(f"{path}: must be finite")
        return float(value)
    if not isinstance(value, kind.type) or (kind.type is not bool and isinstance(value, bool)):
        raise ConfigError(f"{path}: must be {kind.type.__name__}, not {type(value).__name__}")
    # Bounds hold in both directions.
    if kind.limit is not None and not -kind.limit <= value <= kind.limit:
        bound = f"at most {kind.limit}" if value > 0 else f"at least -{kind.limit}"
        raise ConfigError(f"{path}: must be {bound}")
    return value


def _hint(key: str, known: list[str]) -> str:
    """Suggest a known field, or list all of them.

    Comparing strings takes quadratic time, so only short keys are compared.
    """
    near = difflib.get_close_matches(key, known, n=1) if len(key) <= _MAX_SHOWN else []
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _shown(text: str) -> str:
    """Shorten a tenant's text for an error."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
