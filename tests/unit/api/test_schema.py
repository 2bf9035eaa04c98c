"""Every construct our models use has its structural form; every other one is refused by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from drumline_api.base import ApiModel, Rule, keyed_by
from drumline_api.schema import SchemaError, structural_schema


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Leaf(ApiModel):
    """A part,
    over two lines.

    And a second paragraph.
    """

    name: Annotated[str, Field(max_length=8)]
    """Its name."""
    width: Annotated[int, Field(ge=1)] = 3

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.width < 9",
            message="too wide",
            message_expression="'%d'.format([self.width])",
            field_path=".width",
        ),
    )


class Slender(ApiModel):
    width: int = 1


def schema_of(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The structural schema of one field with this annotation."""
    namespace: dict[str, Any] = {"__annotations__": {"field": annotation}, "__module__": __name__}
    if default is not ...:
        namespace["field"] = default
    model = type("Probe", (ApiModel,), namespace)
    return structural_schema(model)["properties"]["field"]


LEAF = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8, "description": "Its name."},
        "width": {"type": "integer", "minimum": 1, "default": 3},
    },
    "required": ["name"],
    "x-kubernetes-validations": [
        {
            "rule": "self.width < 9",
            "message": "too wide",
            "messageExpression": "'%d'.format([self.width])",
            "fieldPath": ".width",
        }
    ],
}
PROSE = "A part, over two lines.\n\nAnd a second paragraph."
KEY = Annotated[str, Field(max_length=4, pattern="^[a-z]+$")]


@pytest.mark.parametrize(
    ("annotation", "default", "want"),
    [
        (int | None, None, {"type": "integer"}),
        (bool, False, {"type": "boolean", "default": False}),
        (Literal["a"], ..., {"type": "string", "enum": ["a"]}),
        (Colour, Colour.RED, {"type": "string", "enum": ["red", "blue"], "default": "red"}),
        (Leaf, ..., {**LEAF, "description": PROSE}),
        (Leaf | None, None, {**LEAF, "description": PROSE}),
        (
            Annotated[list[Leaf], Field(max_length=2, json_schema_extra=keyed_by("name"))],
            ...,
            {
                "type": "array",
                "maxItems": 2,
                "items": {**LEAF, "description": PROSE},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
        (
            Annotated[dict[str, Any], Field(max_length=3)],
            ...,
            {"type": "object", "maxProperties": 3, "x-kubernetes-preserve-unknown-fields": True},
        ),
        (
            Annotated[dict[KEY, int], Field(max_length=3)],
            ...,
            {
                "type": "object",
                "maxProperties": 3,
                "additionalProperties": {"type": "integer"},
                "x-kubernetes-validations": [
                    {
                        "rule": "self.all(key, key.size() <= 4 && key.matches(r'^[a-z]+$'))",
                        "message": "keys have at most 4 characters and look like ^[a-z]+$",
                    }
                ],
            },
        ),
        (
            Slender,
            Slender(),
            {
                "type": "object",
                "properties": {"width": {"type": "integer", "default": 1}},
                "default": {},
            },
        ),
    ],
)
def test_a_construct_becomes_its_structural_form(
    annotation: Any, default: Any, want: dict[str, Any]
) -> None:
    assert schema_of(annotation, default) == want


@pytest.mark.parametrize(
    ("annotation", "default", "names"),
    [
        (int | str, ..., "anyOf"),
        (Annotated[int, Field(gt=0)], ..., "exclusiveMinimum"),
        (Annotated[tuple[int, int], Field()], ..., "prefixItems"),
        (set[int], ..., "uniqueItems"),
        (Any, ..., "no type"),
        (str, ..., "maxLength"),
        (list[int], ..., "maxItems"),
        (dict[str, int], ..., "maxProperties"),
        (Slender, Slender(width=2), "all defaults"),
        (Literal[1], ..., "string literals"),
    ],
)
def test_what_a_crd_cannot_say_is_refused_by_name(
    annotation: Any, default: Any, names: str
) -> None:
    with pytest.raises(SchemaError, match=names):
        schema_of(annotation, default)


class Endless(ApiModel):
    below: Endless | None = None


def test_recursion_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="Endless"):
        structural_schema(Endless)


def test_a_field_may_be_called_title() -> None:
    class Book(ApiModel):
        title: Annotated[str, Field(max_length=9)]

    assert structural_schema(Book)["properties"] == {"title": {"type": "string", "maxLength": 9}}
