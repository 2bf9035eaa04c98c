"""Which nodes a job may use by their labels, beyond equality: a hard constraint of placement.

The required half of a pod's nodeAffinity. Preferences between nodes are the scheduler's own:
topology, packing, pools in order.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import DISTINCT, ApiModel, LabelKey, LabelValue, Rule

_IN: Final = "self.operator in ['In', 'NotIn']"
_COMPARES: Final = "self.operator in ['Gt', 'Lt']"


class NodeExpression(ApiModel):
    """One condition on a label of a node, as in a pod's matchExpressions."""

    key: LabelKey
    """The label, for instance kubernetes.io/hostname."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """In and NotIn compare with values, a node without the label meets NotIn; Gt and Lt compare
    with one integer."""
    values: Annotated[list[LabelValue] | None, Field(max_length=32, json_schema_extra=DISTINCT)] = (
        None
    )
    """What the label is compared with; none for Exists and DoesNotExist."""

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
            message="values have no meaning with operators Exists and DoesNotExist; remove them",
            field_path=".values",
        ),
    )


class NodeTerm(ApiModel):
    """Conditions that must all hold."""

    match_expressions: Annotated[list[NodeExpression], Field(min_length=1, max_length=8)]
    """On labels of the node; all of them."""


class NodeAffinity(ApiModel):
    """Which nodes a job may use."""

    required: Annotated[list[NodeTerm], Field(min_length=1, max_length=4)]
    """A node must meet one of these terms."""
