"""Read what can be read of a document that its decoder rejects.

A bound pod that cannot be read whole still holds its node, and a node that cannot be read whole
still runs its pods. Each part of the document that does not match its type gets its default:

    {"taints": [{"key": "a", "effect": "b"}, 5], "unschedulable": "?"}
    -> taints [a], and unschedulable False
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec

from drumline.kube.nesting import flattened

T = TypeVar("T")
_ENTRIES: Final = (list, dict)
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def readable_parts(kind: type[T], raw: bytes | msgspec.Raw) -> T:
    """Return a struct with the parts of a document that match its type. O(bytes x depth).

    Raises:
        ValueError: the document is not an object, or lacks a required part.
    """
    return _read(kind, msgspec.Raw(flattened(bytes(raw))))


def _read(kind: Any, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError:
        # An optional part is a union with None.
        for option in (kind,) if get_origin(kind) in _ENTRIES else (kind, *get_args(kind)):
            if get_origin(option) in _ENTRIES:
                return _read_entries(option, raw)
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                return _read_struct(option, raw)
        raise


def _read_struct(kind: Any, raw: msgspec.Raw) -> Any:
    fields, values = _decode_fields(raw), dict[str, Any]()
    for field in msgspec.structs.fields(kind):
        if field.encode_name in fields:
            try:
                values[field.name] = _read(field.type, fields[field.encode_name])
            except msgspec.MsgspecError:
                if field.required:
                    raise
        elif field.required:
            raise msgspec.ValidationError(f"no {field.encode_name}")
    return kind(**values)


def _read_entries(kind: Any, raw: msgspec.Raw) -> Any:
    """Return the entries of a list or dictionary that can be read."""
    if get_origin(kind) is list:
        pairs = list(enumerate(_decode_items(raw)))
    else:
        pairs = list(_decode_fields(raw).items())
    read: dict[Any, Any] = {}
    for key, item in pairs:
        try:
            read[key] = _read(get_args(kind)[-1], item)
        except msgspec.MsgspecError:
            continue
    return list(read.values()) if get_origin(kind) is list else read
