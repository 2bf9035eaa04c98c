"""Convert pydantic models to structural OpenAPI v3 schemas, the dialect that CRDs accept.

Pydantic writes JSON Schema 2020-12. The API server accepts a small subset of OpenAPI v3 and calls
everything else non-structural. `StructuralSchema` uses pydantic's own extension point for each
construct that our models use:

    Optional[X]          X, and no `default: null` (absent is absent)
    Literal["a"]         enum: [a], not const
    nested model, enum   inlined: a CRD knows no $ref
    default model        default: {}, so that the defaults of its fields apply one by one
    dict[str, Any]       x-kubernetes-preserve-unknown-fields
    dict[Pattern, X]     additionalProperties + a CEL rule on the keys (propertyNames is missing)
    ApiModel.rules       x-kubernetes-validations
    titles               dropped; docstrings and attribute docstrings stay as descriptions

Any other construct (unions, tuples, exclusive bounds, recursion) is rejected by name in `_check`,
so either the schema is structural or the build fails.
"""

from __future__ import annotations

import re
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from drumline_api.base import ApiModel, Rule

Schema = dict[str, Any]

# An allow-list: a new keyword of pydantic fails the build instead of being pruned.
_LEAF_KEYWORDS = frozenset(
    {
        "default",
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "nullable",
        "pattern",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }
)
_MAX_KEYS = "maxProperties"
_VALIDATIONS = "x-kubernetes-validations"


class SchemaError(TypeError):
    """A model uses a construct that a CRD cannot express. The message names the field."""


def structural_schema(model: type[ApiModel]) -> Schema:
    """Return the schema of `model`, self-contained and structural.

    Raises:
        SchemaError: the model has a part that no structural schema can express.
    """
    # Phase 1: pydantic's schema, with our replacements for single constructs.
    raw = model.model_json_schema(by_alias=True, schema_generator=StructuralSchema)
    definitions = cast("dict[str, Schema]", raw.pop("$defs", {}))
    # Phase 2: no references, because a structural schema has none.
    schema = _inline(raw, definitions, path="", open_references=())
    # Phase 3: reject all that is left, by the name of its field.
    _check(schema, path="")
    return schema


def without_rules_of_the_spec(schema: Schema) -> Schema:
    """Return a kind's schema without the rules of the whole object and the whole spec."""
    # New dicts: the caller may need the schema with its rules too.
    properties = {**schema["properties"]}
    properties["spec"] = _without_rules(properties["spec"])
    return {**_without_rules(schema), "properties": properties}


def _without_rules(schema: Schema) -> Schema:
    return {keyword: value for keyword, value in schema.items() if keyword != _VALIDATIONS}


class StructuralSchema(GenerateJsonSchema):
    """Pydantic's schema generator, with replacements for constructs that CRDs lack."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return the inner type of an optional field: absent, never null."""
        # The server prunes or rejects a null in a field that is not nullable.
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return defaults as the API server applies them. None means that a field has no default.

        Raises:
            SchemaError: a default model is not all defaults.
        """
        inner = self.generate_inner(schema["schema"])
        default: object = schema.get("default")
        # A default of None would become `default: null`, which the server rejects.
        if default is None:
            return inner
        if isinstance(default, BaseModel):
            # `default: {}` only works if each field of the part has its own default.
            if default != type(default)():
                raise SchemaError(f"{type(default).__name__}: a default must be all defaults")
            return {**inner, "default": {}}
        return {**inner, "default": self.encode_default(default)}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Return the schema of a choice of strings.

        Raises:
            SchemaError: a literal is not a string.
        """
        # Integers and booleans have no enum in our API, so they are not supported.
        if not all(isinstance(value, str) for value in schema["expected"]):
            raise SchemaError(f"{schema['expected']}: only string literals are supported")
        return {"type": "string", "enum": list(schema["expected"])}

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        """Return the schema of a choice of strings."""
        return {"type": "string", "enum": [member.value for member in schema["members"]]}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Return the schema of a map, or of a free object if any value is allowed."""
        generated = super().dict_schema(schema)
        keys = generated.pop("propertyNames", {})
        patterns = generated.pop("patternProperties", {})
        # Pydantic writes bounded keys as patternProperties, which CRDs lack.
        for pattern, values in patterns.items():
            keys["pattern"] = pattern
            generated["additionalProperties"] = values
        if generated.get("additionalProperties") is True:
            del generated["additionalProperties"]
            generated["x-kubernetes-preserve-unknown-fields"] = True
        if keys:
            generated[_VALIDATIONS] = [_rule(_key_rule(keys))]
        return generated

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return an object's schema with the model's CEL rules."""
        generated = super().model_schema(schema)
        rules = cast("type[ApiModel]", schema["cls"]).rules
        if rules:
            generated[_VALIDATIONS] = [_rule(rule) for rule in rules]
        return generated


def _key_rule(keys: Schema) -> Rule:
    longest, pattern = keys["maxLength"], keys["pattern"]
    return Rule(
        # A raw string, because the pattern contains backslashes.
        rule=f"self.all(key, key.size() <= {longest} && key.matches(r'{pattern}'))",
        message=f"keys have at most {longest} characters and look like {pattern}",
    )


def _rule(rule: Rule) -> Schema:
    # Optional members are left out, so that generated files change only with their content.
    entry: Schema = {"rule": rule.rule, "message": rule.message}
    if rule.message_expression is not None:
        entry["messageExpression"] = rule.message_expression
    if rule.field_path is not None:
        entry["fieldPath"] = rule.field_path
    return entry


def _inline(
    node: Any, definitions: dict[str, Schema], *, path: str, open_references: tuple[str, ...]
) -> Any:
    """Replace every `$ref` in `node`. Keys beside a reference override its target."""
    if isinstance(node, list):
        items = cast("list[Any]", node)
        return [
            _inline(item, definitions, path=path, open_references=open_references) for item in items
        ]
    if not isinstance(node, dict):
        return node
    schema = cast("Schema", node)
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        if name in open_references:
            raise SchemaError(f"{path}: {name} contains itself; a CRD cannot express recursion")
        # Keys beside `$ref` belong to the field: its description and its default.
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _inline(
            {**definitions[name], **beside},
            definitions,
            path=path,
            open_references=(*open_references, name),
        )
    return {
        key: _prose(value)
        if key == "description" and isinstance(value, str)
        else _inline(value, definitions, path=f"{path}.{key}", open_references=open_references)
        for key, value in schema.items()
        # A title only repeats the name of the field.
        if not (key == "title" and isinstance(value, str))
    }


def _prose(text: str) -> str:
    """Join docstring lines into paragraphs."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _check(schema: Schema, *, path: str) -> None:
    """Reject constructs that a structural schema may not contain, and missing bounds."""
    where = path or "(root)"
    for keyword, value in schema.items():
        # Names of fields are not keywords, so they are not compared with the list.
        if keyword == "properties":
            for name, below in cast("dict[str, Schema]", value).items():
                _check(below, path=f"{path}.{name}")
        elif keyword == "items":
            _check(value, path=f"{path}[]")
        elif keyword == "additionalProperties":
            _check(value, path=f"{path}{{}}")
        elif keyword not in _LEAF_KEYWORDS:
            raise SchemaError(f"{where}: a structural schema cannot contain {keyword!r}")
    if schema.get("x-kubernetes-preserve-unknown-fields") and "type" not in schema:
        return  # any value of a map, which has the bound
    kind = "string" if "x-kubernetes-int-or-string" in schema else schema.get("type")
    if kind is None:
        raise SchemaError(f"{where}: has no type")
    # Without a bound the server assumes the largest value, and rejects the rule as too costly.
    bound = {"array": "maxItems", "string": "maxLength"}.get(str(kind))
    if "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema:
        bound = _MAX_KEYS
    # Enums and formats are bounded by themselves.
    if bound is not None and bound not in schema and not schema.keys() & {"enum", "format"}:
        raise SchemaError(
            f"{where}: needs {bound}, because the API server estimates CEL's cost from it"
        )
