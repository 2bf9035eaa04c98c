"""The reasons for which the API server refuses a new object of our group; pure.

The order is the server's: the kind and its version, unknown fields (`kubectl` asks for strict
validation), then types, bounds and keys of lists, and the rules in CEL once all of these hold.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

from drumline.kube.kinds import is_label, is_subdomain
from drumline_api.base import GROUP, VERSION, ApiModel
from drumline_api.crds import DEFINITIONS, Definition
from drumline_api.schema import Schema, structural_schema
from drumline_api.unknown_fields import unknown_fields
from drumline_cli.errors import BadInput
from drumline_cli.validation.cel_rules import broken_rule

_KINDS: Final = {definition.kind: definition for definition in DEFINITIONS}
_TOP: Final = frozenset(("apiVersion", "kind", "metadata", "spec", "status"))
_METADATA: Final = frozenset(
    (
        *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp"),
        *("finalizers", "generateName", "generation", "labels", "managedFields", "name"),
        *("namespace", "ownerReferences", "resourceVersion", "selfLink", "uid"),
    )
)
_LABEL_TEXT: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
"""A label's value, and the name of a label or an annotation, which must not be empty."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_MAX_SHOWN: Final = 64
_ALPHABET: Final = "lower case letters, digits, '-', with a letter or digit first and last"


@dataclass(frozen=True, slots=True)
class ServerRefusal:
    """One reason for which the API server refuses an object.

    Attributes:
        path: the field, in the notation of `kubectl explain`: `spec.trainer.steps`.
        problem: the problem, with the server's message if it has one.
    """

    path: str
    problem: str

    def __str__(self) -> str:
        # A rule over the whole object has no path, and its message names the field.
        return f"{self.path}: {self.problem}" if self.path else self.problem


def refusals(raw: Mapping[str, Any]) -> list[ServerRefusal]:
    """Return why a server would refuse to create an object; nothing: it would accept it.

    Args:
        raw: decoded JSON of an object. An object of another group is not judged.
    """
    # Core kinds have no slash in `apiVersion`. Only our group has a schema here.
    group, slash, version = str(raw.get("apiVersion", "")).partition("/")
    if not slash or group != GROUP:
        return []
    kind = str(raw.get("kind", ""))
    definition = _KINDS.get(kind)
    if definition is None:
        # A typing mistake in a kind is common, so suggest the nearest kind.
        near = difflib.get_close_matches(kind[:_MAX_SHOWN], _KINDS, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(_KINDS)}"
        return [ServerRefusal("kind", f"{GROUP} has no kind {kind[:_MAX_SHOWN]!r}; {remedy}")]
    if version != VERSION:
        return [ServerRefusal("apiVersion", f"{version!r} is not served; write {GROUP}/{VERSION}")]
    # The server stops at the first failing stage. Later checks assume a valid structure.
    for stage in (_unknown, _metadata, _structure):
        reasons = list(stage(definition, raw))
        if reasons:
            return reasons
    return list(_rules(definition, raw))


def check(manifest: Mapping[str, Any]) -> None:
    """Refuse an object that a command is about to print or to create.

    Raises:
        BadInput: the API server would refuse it.
    """
    # The first reason suffices: the command stops, and the user sees one problem at a time.
    for refusal in refusals(manifest):
        raise BadInput(str(refusal))


def _unknown(definition: Definition, raw: Mapping[str, Any]) -> Iterator[ServerRefusal]:
    # Unknown fields are errors only with strict validation, which kubectl requests by default.
    for name in sorted(raw.keys() - _TOP):
        there = ", ".join(sorted(_TOP))
        yield ServerRefusal(
            name, f'strict decoding error: unknown field "{name}"; there are {there}'
        )
    spec = raw.get("spec")
    # A wrong type of `spec` is reported by a later stage, in the server's words.
    if isinstance(spec, dict):
        model = cast("type[ApiModel]", definition.model.model_fields["spec"].annotation)
        for problem in unknown_fields(model, cast("dict[str, Any]", spec), at="spec"):
            path = problem.path
            hint = str(problem).removeprefix(f"{path}: unknown field")
            yield ServerRefusal(path, f'strict decoding error: unknown field "{path}"{hint}')


def _metadata(_: Definition, raw: Mapping[str, Any]) -> Iterator[ServerRefusal]:
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        yield ServerRefusal("metadata", "Required value: an object needs a name")
        return
    fields = cast("dict[str, Any]", metadata)
    for field in sorted(fields.keys() - _METADATA):
        near = difflib.get_close_matches(field, _METADATA, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield ServerRefusal(
            f"metadata.{field}", f'strict decoding error: unknown field "metadata.{field}"{hint}'
        )
    name, namespace = fields.get("name"), fields.get("namespace")
    # The server appends five characters to generateName. One is enough for the pattern.
    if name is None and isinstance(fields.get("generateName"), str):
        name = f"{fields['generateName']}x"
    if name is None:
        yield ServerRefusal("metadata.name", "Required value: name or generateName is required")
    # Namespaces are labels.
    elif not isinstance(name, str) or not is_subdomain(name):
        yield ServerRefusal(
            "metadata.name", f"Invalid value: {str(name)[:_MAX_SHOWN]!r}: use {_ALPHABET} and '.'"
        )
    if namespace is not None and not (isinstance(namespace, str) and is_label(namespace)):
        yield ServerRefusal(
            "metadata.namespace",
            f"Invalid value: {str(namespace)[:_MAX_SHOWN]!r}: use {_ALPHABET}",
        )
    yield from _key_values(fields)


def _key_values(metadata: Mapping[str, Any]) -> Iterator[ServerRefusal]:
    for field in ("labels", "annotations"):
        texts: Any = metadata.get(field) or {}
        # YAML reads `yes`, `1` and `null` as other types. Users often forget the quotes.
        if not isinstance(texts, dict) or not all(
            isinstance(text, str) for text in cast("dict[Any, Any]", texts).values()
        ):
            yield ServerRefusal(
                f"metadata.{field}", "must be a map of texts: put values into quotes"
            )
            continue
        for key, text in cast("dict[str, str]", texts).items():
            # An optional domain stands before the name, as in example.com/team.
            name = key.removeprefix(f"{(domain := key.partition('/')[0])}/")
            is_key = bool(name) and _LABEL_TEXT.fullmatch(name) is not None
            if not is_key or (name != key and not is_subdomain(domain)):
                wrong = key
            elif field == "labels" and not _LABEL_TEXT.fullmatch(text):
                wrong = text
            else:
                continue
            yield ServerRefusal(
                f"metadata.{field}",
                f"Invalid value: {wrong[:_MAX_SHOWN]!r}: use at most 63 letters, digits, '-', '_'"
                " and '.', with a letter or digit first and last",
            )


def _structure(definition: Definition, raw: Mapping[str, Any]) -> Iterator[ServerRefusal]:
    schema = _schema(definition.kind)
    # The server reports a missing spec before any field in it.
    if "spec" in schema.get("required", []) and raw.get("spec") is None:
        yield ServerRefusal("spec", "Required value")
        return
    yield from _mismatches(schema["properties"]["spec"], raw.get("spec"), at="spec")


def _rules(definition: Definition, raw: Mapping[str, Any]) -> Iterator[ServerRefusal]:
    schema = _schema(definition.kind)
    # Rules can read metadata and spec only. A status is a subresource.
    known = {name: value for name, value in raw.items() if name in ("metadata", "spec")}
    # Defaults apply before rules run, so a rule sees the stored form.
    value = _with_defaults(schema, {**known, "metadata": _of_rules(raw)})
    yield from _broken(schema, value, at="")


def _of_rules(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that rules may read."""
    # The server exposes exactly these two fields of metadata to CEL.
    metadata = cast("Mapping[str, Any]", raw["metadata"])
    named = {name: metadata[name] for name in ("name", "generateName") if name in metadata}
    # The server generates a name before it evaluates rules.
    return {"name": f"{str(named.get('generateName', ''))[:58]}xxxxx", **named}


@cache
def _schema(kind: str) -> Schema:
    return structural_schema(_KINDS[kind].model)


def _mismatches(schema: Schema, value: Any, *, at: str) -> Iterator[ServerRefusal]:
    """Yield each place at which a value or its children contradict the schema."""
    # Null is allowed only where the schema has `nullable`.
    if value is None:
        if not schema.get("nullable"):
            yield ServerRefusal(at, "Required value: null is no value here")
        return
    if schema.get("x-kubernetes-int-or-string"):
        # In Python a bool is an int, but in JSON it is not.
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            yield _invalid(at, value, "must be an integer or a text")
            return
    # A wrong type makes further checks of this value pointless.
    elif (wanted := schema.get("type")) is not None and not _has_type(value, wanted):
        yield _invalid(at, value, f"{at} in body must be of type {wanted}")
        return
    yield from _out_of_bounds(schema, value, at=at)
    # Children are checked even if the value itself is out of bounds, as the server does.
    if isinstance(value, dict):
        yield from _mismatches_of_fields(schema, cast("dict[str, Any]", value), at=at)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        for number, each in enumerate(items):
            yield from _mismatches(schema.get("items", {}), each, at=f"{at}[{number}]")
        yield from _duplicates(schema, items, at=at)


def _has_type(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    # JSON has one number type. The server accepts 2.0 for an integer.
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[wanted])


def _mismatches_of_fields(
    schema: Schema, value: Mapping[str, Any], *, at: str
) -> Iterator[ServerRefusal]:
    fields: Schema = schema.get("properties") or {}
    for name in schema.get("required", []):
        # A default fills a required field, so the field may be absent.
        if value.get(name) is None and "default" not in fields.get(name, {}):
            yield ServerRefusal(f"{at}.{name}", "Required value")
    for name, below in value.items():
        if name in fields:
            # The server drops a null where a field is optional.
            if below is not None:
                yield from _mismatches(fields[name], below, at=f"{at}.{name}")
        # Fields without a schema are reported as unknown by an earlier stage.
        elif isinstance(free_keys := schema.get("additionalProperties"), dict):
            yield from _mismatches(cast("Schema", free_keys), below, at=f"{at}.{name}")


def _out_of_bounds(schema: Schema, value: Any, *, at: str) -> Iterator[ServerRefusal]:
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(each) for each in schema["enum"])
        yield ServerRefusal(
            at, f"Unsupported value: {_shown(value)}: supported values: {supported}"
        )
    # The schema has inclusive bounds. A missing bound compares the value with itself.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            words = f"{at} in body should be greater than or equal to {schema['minimum']}"
            yield _invalid(at, value, words)
        if value > schema.get("maximum", value):
            words = f"{at} in body should be less than or equal to {schema['maximum']}"
            yield _invalid(at, value, words)
    # One table covers the three sized types, because only their words differ.
    sized = isinstance(value, (str, list, dict))
    size = len(cast("str", value)) if sized else 0
    for kind, low, high, unit in (
        (str, "minLength", "maxLength", "chars long"),
        (list, "minItems", "maxItems", "items"),
        (dict, "minProperties", "maxProperties", "properties"),
    ):
        if isinstance(value, kind):
            if size < schema.get(low, 0):
                yield _invalid(at, value, f"{at} in body should have at least {schema[low]} {unit}")
            if size > schema.get(high, size):
                yield ServerRefusal(at, _excess(kind, size, schema[high]))
    # The server searches the pattern anywhere in the text. Anchors are part of the pattern.
    pattern = schema.get("pattern")
    if isinstance(value, str) and pattern and re.search(pattern, value) is None:
        yield _invalid(at, value, f"{at} in body should match '{pattern}'")


def _duplicates(schema: Schema, items: list[Any], *, at: str) -> Iterator[ServerRefusal]:
    kind = schema.get("x-kubernetes-list-type")
    # Atomic lists may contain duplicates. Maps compare keys, and sets compare whole items.
    if kind not in ("map", "set"):
        return
    keys: list[str] = schema.get("x-kubernetes-list-map-keys", [])
    fields: Schema = schema.get("items", {}).get("properties", {})
    seen: set[str] = set()
    for number, item in enumerate(items):
        if kind == "map" and not isinstance(item, dict):
            continue  # the type check has reported it
        named = cast("object", item)
        if kind == "map":
            entry = cast("dict[str, Any]", item)
            # A key may come from a default, so two items can collide without naming it.
            named = {key: entry.get(key, fields.get(key, {}).get("default")) for key in keys}
        # Sorted keys make equal objects equal texts.
        text = json.dumps(named, sort_keys=True)
        if text in seen:
            yield ServerRefusal(f"{at}[{number}]", f"Duplicate value: {text[:_MAX_SHOWN]}")
        seen.add(text)


def _with_defaults(schema: Schema, value: Any) -> Any:
    """Return a value as the server stores it: with the defaults of fields, without nulls."""
    if isinstance(value, list):
        items: Schema = schema.get("items", {})
        return [_with_defaults(items, each) for each in cast("list[Any]", value)]
    # kubectl sends 2.0 as 2. Rules are typed, so they could not compare the fraction.
    if isinstance(value, float) and schema.get("type") == "integer":
        return int(value)
    if not isinstance(value, dict):
        return value
    fields: Schema = schema.get("properties") or {}
    stored = {
        name: _with_defaults(_field_of(schema, name), each)
        for name, each in cast("dict[str, Any]", value).items()
        # The server prunes nulls of fields without `nullable` before it stores the object.
        if each is not None
    }
    for name, field in fields.items():
        # A copy per object: a shared default would leak changes between jobs.
        if name not in stored and "default" in field:
            stored[name] = _with_defaults(field, copy.deepcopy(field["default"]))
    return stored


def _field_of(schema: Schema, name: str) -> Schema:
    fields: Schema = schema.get("properties") or {}
    free: Any = schema.get("additionalProperties")
    # `properties` wins over `additionalProperties`. A field in neither has no schema.
    return fields.get(name) or (cast("Schema", free) if isinstance(free, dict) else {})


def _broken(schema: Schema, value: Any, *, at: str) -> Iterator[ServerRefusal]:
    """Return the rules that a value breaks, and those that its children break."""
    # Rules of the parent come first, as in the server's list of causes.
    for rule in schema.get("x-kubernetes-validations", []):
        message = broken_rule(rule, value)
        if message is not None:
            yield ServerRefusal(f"{at}{rule.get('fieldPath', '')}".removeprefix("."), message)
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            path = f"{at}.{name}" if at else name
            yield from _broken(_field_of(schema, name), each, at=path)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[Any]", value)):
            yield from _broken(schema.get("items", {}), each, at=f"{at}[{number}]")


def _excess(kind: type, size: int, most: int) -> str:
    if kind is str:
        # The server says bytes, although the limit counts characters.
        return f"Too long: may not be more than {most} bytes"
    return f"Too many: {size}: must have at most {most} items"


def _invalid(at: str, value: Any, problem: str) -> ServerRefusal:
    return ServerRefusal(at, f"Invalid value: {_shown(value)}: {problem}")


def _shown(value: Any) -> str:
    return json.dumps(value)[:_MAX_SHOWN]
