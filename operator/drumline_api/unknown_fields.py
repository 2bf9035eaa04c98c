"""Find fields that an object's schema lacks, which the API server would drop or reject."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from drumline_api.base import ApiModel
from drumline_api.load import ApiError
from drumline_api.schema import Schema, structural_schema

_LONGEST: Final = 64
"""Number of characters of a name that are compared with other names, or repeated."""


def unknown_fields(model: type[ApiModel], raw: Mapping[str, Any], *, at: str) -> Iterator[ApiError]:
    """Return each field below `raw` that the schema of `model` lacks, with the nearest name.

    `kubectl` rejects such fields by default (strict field validation). Without this check, a local
    file would be read without them.

    Args:
        model: expected model.
        raw: decoded JSON.
        at: path of `raw` in its object: `spec`.
    """
    yield from _unknown(structural_schema(model), raw, at=at)


def _unknown(schema: Schema, value: object, *, at: str) -> Iterator[ApiError]:
    if isinstance(value, list):
        items: Schema = schema.get("items") or {}
        for number, element in enumerate(cast("list[object]", value)):
            yield from _unknown(items, element, at=f"{at}[{number}]")
        return
    if not isinstance(value, Mapping):
        return
    fields: dict[str, Schema] = schema.get("properties") or {}
    free = "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema
    for name, below in cast("Mapping[str, object]", value).items():
        path = f"{at}.{name}"
        if name in fields:
            yield from _unknown(fields[name], below, at=path)
        elif fields and not free:
            yield ApiError(path=path, problem=f"unknown field{_hint(str(name), list(fields))}")


def _hint(name: str, known: list[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name[:_LONGEST].lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else f"; there are {', '.join(known)}"
