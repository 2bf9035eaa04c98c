"""Select the namespaces that may use a queue, by their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import DISTINCT, ApiModel, LabelKey, LabelValue, Rule

_COMPARES: Final = "self.operator in ['In', 'NotIn']"


class NamespaceExpression(ApiModel):
    """A condition on one label of a namespace."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In and NotIn compare with values. A namespace without the label satisfies NotIn."""
    values: Annotated[list[LabelValue] | None, Field(max_length=32, json_schema_extra=DISTINCT)] = (
        None
    )
    """Values to compare the label with. Must be unset for Exists and DoesNotExist."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"!({_COMPARES}) || (has(self.values) && self.values.size() > 0)",
            message="values: operators In and NotIn need at least one",
            field_path=".values",
        ),
        Rule(
            rule=f"{_COMPARES} || !has(self.values) || self.values.size() == 0",
            message="values cannot be used with operators Exists and DoesNotExist; remove them",
            field_path=".values",
        ),
    )

    def holds(self, value: str | None) -> bool:
        """Return whether a namespace with this label value matches. None: it lacks the label."""
        values = self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None

    def __str__(self) -> str:
        """Return the condition in the syntax of kubectl's `-l`."""
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({', '.join(self.values or ())})"


class NamespaceSelector(ApiModel):
    """Conditions on the labels of a namespace.

    All must be true. Without conditions, every namespace matches.
    """

    match_labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=16)] = None
    """Labels that the namespace must have, with these values."""
    match_expressions: Annotated[list[NamespaceExpression] | None, Field(max_length=16)] = None
    """Further conditions on the labels of the namespace."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether a namespace with these labels is selected."""
        return (self.match_labels or {}).items() <= labels.items() and all(
            expression.holds(labels.get(expression.key))
            for expression in self.match_expressions or ()
        )

    def __str__(self) -> str:
        """Return kubectl's `-l` syntax: `team=nlp,stage in (dev, test),!paused`."""
        equal = [f"{key}={value}" for key, value in sorted((self.match_labels or {}).items())]
        return ",".join([*equal, *map(str, self.match_expressions or ())])
