"""Find fields that an object's schema lacks, which the API server would drop or reject."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, cast

from drumline_api.base import ApiModel
from drumline_api.load import ApiError
from drumline_api.schema import Schema, structural_schema

_LONGEST: Final = 64
"""Number of characters of a name that are compared with other names, or repeated."""

_MOST_MEANT: Final = 3
"""Number of fields of one name in several objects that a message lists."""

_ALIKE: Final = 0.7
"""Least similarity of two names, of 1: one letter in three may be wrong."""

_MEANT: Final = {
    "gpus": "gpusPerNode",
    "numgpus": "gpusPerNode",
    "replicas": "nodes",
    "workers": "nodes",
    "numnodes": "nodes",
    "priority": "priorityClassName",
    "queuename": "queue",
}
"""Names that other systems give to our fields, in lower case."""


def unknown_fields(model: type[ApiModel], raw: Mapping[str, Any], *, at: str) -> Iterator[ApiError]:
    """Return each field below `raw` that the schema of `model` lacks, with the nearest name.

    `kubectl` rejects such fields by default (strict field validation). Without this check, a local
    file would be read without them.

    Args:
        model: expected model.
        raw: decoded JSON.
        at: path of `raw` in its object: `spec`.
    """
    yield from _unknown(_schema(model), raw, at=at)


@cache
def _schema(model: type[ApiModel]) -> Schema:
    # A file may have thousands of objects, and a schema takes longer than their checks.
    return structural_schema(model)


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
            yield ApiError(path=path, problem=f"unknown field{_hint(str(name), schema)}")


def _hint(name: str, schema: Schema) -> str:
    """Return the field that was probably meant: a neighbour, one of its objects, or the list."""
    fields: dict[str, Schema] = schema["properties"]
    lower = name[:_LONGEST].lower()
    if _MEANT.get(lower) in fields:
        return f"; did you mean {_MEANT[lower]}?"
    beside = {each.lower(): [each] for each in fields}
    inside: dict[str, list[str]] = {}
    for each, below in fields.items():
        within: dict[str, Schema] = below.get("properties") or {}
        for inner in within:
            inside.setdefault(inner.lower(), []).append(f"{each}.{inner}")
    meant = inside.get(lower, [])[:_MOST_MEANT] or _near(lower, beside) or _near(lower, inside)
    return f"; did you mean {' or '.join(meant)}?" if meant else f"; there are {', '.join(fields)}"


def _near(name: str, paths: Mapping[str, list[str]]) -> list[str]:
    near = difflib.get_close_matches(name, paths, n=1, cutoff=_ALIKE)
    return paths[near[0]][:_MOST_MEANT] if near else []
