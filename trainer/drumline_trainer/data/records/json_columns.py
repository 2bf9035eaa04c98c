r"""JSON in columns of Arrow: the type `arrow.json`, as `datasets` stores values of mixed types.

A text is stored with quotes and escapes there, unless it is valid JSON by itself.

    column    "Say \"four\""    [{"type": "text", "text": "Hello"}]
    value     Say "four"        a list
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any, Final

_EXTENSION: Final = "arrow.json"
Decode = Callable[[Any], Any]


def decoder_of(kind: Any) -> Decode | None:
    """Return a function that decodes the JSON in Python values of an Arrow type.

    Nulls pass unchanged. None: the type holds no JSON.

    Args:
        kind: a `pyarrow.DataType`.
    """
    types = importlib.import_module("pyarrow.types")  # optional, without types
    if getattr(kind, "extension_name", "") == _EXTENSION:
        return _unless_null(json.loads)
    if types.is_dictionary(kind):
        return decoder_of(kind.value_type)
    if types.is_struct(kind):
        return fields_decoder(kind)
    if types.is_map(kind):
        item = decoder_of(kind.item_type)
        return item and _unless_null(lambda value: {key: item(each) for key, each in value.items()})
    if types.is_nested(kind) and hasattr(kind, "value_type"):
        item = decoder_of(kind.value_type)
        return item and _unless_null(lambda value: [item(each) for each in value])
    return None


def fields_decoder(fields: Any) -> Decode | None:
    """Return the decoder of the objects that a struct or a schema describes."""
    each_of = {field.name: decode for field in fields if (decode := decoder_of(field.type))}
    if not each_of:
        return None

    def decoded(value: dict[str, Any]) -> dict[str, Any]:
        made = {name: each(value[name]) for name, each in each_of.items() if name in value}
        return {**value, **made}

    return _unless_null(decoded)


def _unless_null(decode: Decode) -> Decode:
    return lambda value: None if value is None else decode(value)
