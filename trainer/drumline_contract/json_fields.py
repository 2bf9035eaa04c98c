"""Reading JSON from the other side: bounded before it is parsed, every type checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

from drumline_contract.plain_text import plain

MAX_FIGURE: Final = 1e15
"""Largest absolute value of a loss or a rate. A larger value is read as a missing measurement."""

Choice = TypeVar("Choice", bound=StrEnum)


class ContractError(ValueError):
    """A message that breaks this contract; says which field and why."""


def json_object(body: bytes, limit: int) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        ContractError: the body is larger than `limit` bytes, or not a JSON object.
    """
    # Check the size first: the parser's memory grows with the body.
    if len(body) > limit:
        raise ContractError(f"body of {len(body)} bytes is over the limit of {limit}")
    try:
        raw: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ContractError("must be a JSON object")
    return cast("dict[str, Any]", raw)


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, of which Python would keep the last value of a repeated key.

    Raises:
        ContractError: a key is repeated.
    """
    known = dict(pairs)
    if len(known) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key in known if counts[key] > 1)
        raise ContractError(f"the key {twice!r} is written twice in one object; leave one out")
    return known


def text(raw: dict[str, Any], key: str, *, limit: int = 2048) -> str:
    """Read a string of at most `limit` characters, cleaned for terminals. Default: empty.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        limit: largest number of characters.

    Raises:
        ContractError: it is not a string, or too long.
    """
    value = raw.get(key, "")
    # A missing key is the default, so older peers can leave the field out.
    if not isinstance(value, str) or len(value) > limit:
        raise ContractError(f"{key}: must be a string of at most {limit} characters")
    # JSON can spell half a character (a lone surrogate), which no later encoder accepts.
    return plain(value.encode(errors="replace").decode())


def choice(raw: dict[str, Any], key: str, kind: type[Choice]) -> Choice:
    """Read a member of an enumeration.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        kind: the enumeration.

    Raises:
        ContractError: it is not a member.
    """
    try:
        return kind(text(raw, key))
    except ValueError as error:
        raise ContractError(f"{key}: {error}") from None


def choices(raw: dict[str, Any], key: str, kind: type[Choice]) -> tuple[Choice, ...]:
    """Read members of an enumeration, at most as many as it has; a missing key gives none.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        kind: the enumeration.
    """
    # The number of members bounds the list.
    return tuple(
        choice({key: item}, key, kind) for item in array(raw, key, most=len(kind), optional=True)
    )


def exact_text(raw: dict[str, Any], key: str, *, limit: int = 2048) -> str:
    """Read a string unchanged, for programs and not for terminals. Default: empty.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        limit: largest number of characters.

    Raises:
        ContractError: it is not a string, not valid Unicode, or too long.
    """
    value = raw.get(key, "")
    if not isinstance(value, str) or len(value) > limit or not _is_unicode(value):
        raise ContractError(f"{key}: must be a string of at most {limit} characters")
    return value


def exact_texts(raw: dict[str, Any], key: str, *, most: int) -> tuple[str, ...]:
    """Read at most `most` strings as `exact_text` does. Default: none.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        most: largest number of entries.

    Raises:
        ContractError: it is not a list of such strings.
    """
    return tuple(exact_text({key: each}, key) for each in array(raw, key, most=most, optional=True))


def flag(raw: dict[str, Any], key: str) -> bool:
    """Read a required boolean.

    Raises:
        ContractError: it is not true or false.
    """
    value = raw.get(key)
    if not isinstance(value, bool):
        raise ContractError(f"{key}: must be true or false")
    return value


def array(raw: Mapping[str, Any], key: str, *, most: int, optional: bool = False) -> list[Any]:
    """Read a list of at most `most` values; empty where it is optional and absent.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        most: largest number of entries.
        optional: whether the field may be missing.

    Raises:
        ContractError: it is not a list, or too long.
    """
    value = raw.get(key, [] if optional else None)
    if not isinstance(value, list) or len(cast("list[Any]", value)) > most:
        raise ContractError(f"{key}: must be a list of at most {most}")
    return cast("list[Any]", value)


def nested(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Read an object; must be there.

    Raises:
        ContractError: it is not an object.
    """
    value = raw.get(key)
    if not isinstance(value, dict):
        raise ContractError(f"{key}: must be an object")
    return cast("dict[str, Any]", value)


def optional_nested(raw: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Read an object; None where it is absent."""
    return None if raw.get(key) is None else nested(raw, key)


def objects(raw: Mapping[str, Any], key: str, *, limit: int) -> list[dict[str, Any]]:
    """Read a list of at most `limit` objects. Default: empty.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        limit: largest number of entries.

    Raises:
        ContractError: it is not a list of objects, or too long.
    """
    items = array(raw, key, most=limit, optional=True)
    if not all(isinstance(item, dict) for item in items):
        raise ContractError(f"{key}: each must be an object")
    return items


def counts(raw: dict[str, Any], key: str) -> dict[str, int]:
    """Read numbers by name; a missing key gives none.

    Raises:
        ContractError: it is not an object of counts, or too large.
    """
    value = raw.get(key, {})
    # A small bound suffices for counters by class.
    if not isinstance(value, dict) or len(cast("dict[Any, Any]", value)) > 16:
        raise ContractError(f"{key}: must be an object of at most 16 counts")
    counts = cast("dict[str, Any]", value)
    return {name: integer(counts, name) for name in counts}


def number(raw: dict[str, Any], key: str) -> float:
    """Read a number that must be there.

    Raises:
        ContractError: it is not a number.
    """
    value = optional_number(raw, key)
    if value is None:
        raise ContractError(f"{key}: must be a number")
    return value


def integer(raw: Mapping[str, Any], key: str, *, low: int = 0, high: int = 1 << 53) -> int:
    """Read a required integer within bounds, both inclusive.

    Args:
        raw: decoded JSON object.
        key: name of the field.
        low: smallest value.
        high: largest value.

    Raises:
        ContractError: it is missing, not an integer, or out of bounds.
    """
    value = raw.get(key)
    # bool is a subclass of int. 2^53 is exact in every JSON reader.
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ContractError(f"{key}: must be an integer in {low}..{high}")
    return value


def integers(raw: dict[str, Any], key: str) -> list[int]:
    """Read a required list of integers.

    Raises:
        ContractError: it is not a list of integers.
    """
    value = raw.get(key)
    if not isinstance(value, list):
        raise ContractError(f"{key}: must be a list of integers")
    items = cast("list[object]", value)
    numbers = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    if len(numbers) != len(items):
        raise ContractError(f"{key}: must be a list of integers")
    return numbers


def optional_integer(raw: dict[str, Any], key: str) -> int | None:
    """Read a non-negative integer. None: it is absent.

    Raises:
        ContractError: it is not an integer, or out of bounds.
    """
    return None if raw.get(key) is None else integer(raw, key)


def optional_number(raw: dict[str, Any], key: str) -> float | None:
    """Read a number. None: it is absent, or too large to be a measurement.

    Raises:
        ContractError: it is not a number.
    """
    value = raw.get(key)
    if value is None:
        return None
    # The same for numbers: true is not 1.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ContractError(f"{key}: must be a number")
    # False for a NaN too; compared before it is converted, as an integer may be of any size
    return float(value) if -MAX_FIGURE <= value <= MAX_FIGURE else None


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character, which JSON can spell
        return False
    return True
