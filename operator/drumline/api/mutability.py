"""What of a TrainingJob may change when: the table, and the transition rules made of it.

A running gang was placed, admitted against a quota and configured from the spec, so most of it
may change only while the job is suspended: the old object has `suspend: true`, and its status no
assignment any more, as until then pods of the old spec may stand on their nodes (resuming in the
same update is fine). What a checkpoint depends on never changes: a new job continues from it.
Everything not named here may change at any time.
"""

from __future__ import annotations

from typing import Final

from drumline.api.base import Rule

ONLY_WHILE_SUSPENDED: Final = (
    "queue",
    "gpuPool",
    "gpuPools",
    "topology",
    "group",
    "user",
    "nodes",
    "minNodes",
    "gpusPerNode",
    "resources",
    "nodeSelector",
    "tolerations",
    "trainer",
    "template",
    "checkpoint",
)
"""Fields of `spec`."""


_GAVE_BACK: Final = "(!has(oldSelf.status) || !has(oldSelf.status.assignment))"


def _unchanged(field: str) -> str:
    new, old = f"self.{field}", f"oldSelf.{field}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


def only_while_suspended(field: str) -> Rule:
    """`field` of the spec may change when the job held no node and was suspended before.

    A rule of the whole object, as it reads spec and status.
    """
    suspend = f"{field} may change only while the job is suspended; set suspend: true first"
    wait = f"{field}: wait until the job has given its nodes back (phase Suspended)"
    return Rule(
        rule=f"(oldSelf.spec.suspend && {_GAVE_BACK}) || ({_unchanged(f'spec.{field}')})",
        message=suspend,
        message_expression=f"oldSelf.spec.suspend ? '{wait}' : '{suspend}'",
        field_path=f".spec.{field}",
    )


def never(field: str, *, instead: str) -> Rule:
    """`field` may never change, appear or go; `instead` is what to do."""
    return Rule(
        rule=_unchanged(field),
        message=f"{field} may never change; {instead}",
        field_path=f".{field}",
    )


def never_added_or_removed(field: str, *, instead: str) -> Rule:
    """`field` is there for the whole life of the object or not at all."""
    return Rule(
        rule=f"has(self.{field}) == has(oldSelf.{field})",
        message=f"{field} can neither be added nor removed; {instead}",
        field_path=f".{field}",
    )


JOB_RULES: Final = tuple(only_while_suspended(field) for field in ONLY_WHILE_SUSPENDED)
"""Of the whole object."""

SPEC_RULES: Final = (
    never_added_or_removed("trainer", instead="create a new job"),
    never_added_or_removed("checkpoint", instead="create a new job"),
    never("managedBy", instead="create a new job"),
)
