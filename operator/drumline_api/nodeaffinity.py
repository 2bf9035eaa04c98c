"""Restrict the nodes of a job by label conditions other than equality.

This is the required half of a pod's nodeAffinity, a hard constraint of placement. The scheduler
decides preferences between nodes itself: topology, packing, order of pools.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import DISTINCT, ApiModel, LabelKey, LabelValue, Rule

_IN: Final = "self.operator in ['In', 'NotIn']"
_COMPARES: Final = "self.operator in ['Gt', 'Lt']"


class NodeExpression(ApiModel):
    """A condition on one label of a node, as in a pod's matchExpressions."""

    key: LabelKey
    """Key of the label, such as kubernetes.io/hostname."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """In and NotIn compare with values. A node without the label satisfies NotIn. Gt and Lt compare
    with one integer."""
    values: Annotated[list[LabelValue] | None, Field(max_length=32, json_schema_extra=DISTINCT)] = (
        None
    )
    """Values to compare the label with. Must be unset for Exists and DoesNotExist."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"!({_IN}) || (has(self.values) && self.values.size() > 0)",
            message="values: operators In and NotIn need at least one",
            field_path=".values",
        ),
        Rule(
            rule=f"!({_COMPARES}) || (has(self.values) && self.values.size() == 1"
            " && self.values[0].matches('^[0-9]{1,18}$'))",
            message="values: operators Gt and Lt need one whole number",
            field_path=".values",
        ),
        Rule(
            rule=f"{_IN} || {_COMPARES} || !has(self.values) || self.values.size() == 0",
            message="values cannot be used with operators Exists and DoesNotExist; remove them",
            field_path=".values",
        ),
    )


class NodeTerm(ApiModel):
    """Conditions that must all be true."""

    match_expressions: Annotated[list[NodeExpression], Field(min_length=1, max_length=8)]
    """Conditions on labels of the node. All must be true."""


class NodeAffinity(ApiModel):
    """Nodes that a job may use."""

    required: Annotated[list[NodeTerm], Field(min_length=1, max_length=4)]
    """Terms of which a node must satisfy at least one."""
