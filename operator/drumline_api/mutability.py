"""Define when the fields of a TrainingJob may change: the table, and its CEL transition rules.

A running gang was placed, admitted against a quota and configured from the spec. So most of the
spec may change only while the job is suspended. The old object must have `suspend: true` and no
assignment in its status, because pods of the old spec may run before that. Resuming in the same
update is allowed. Fields that a checkpoint depends on never change: create a new job that continues
from the checkpoint. The deadline of a job that holds nodes can only decrease, like Slurm's time
limits for users. All fields that are not named here may change at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline_api.base import Rule

# All of these decide where pods run or what they contain.
ONLY_WHILE_SUSPENDED: Final = (
    "queue",
    "gpuPartition",
    "gpuPool",
    "gpuPools",
    "topology",
    "computeDomain",
    "group",
    "after",
    "user",
    "nodes",
    "minNodes",
    "gpusPerNode",
    "resources",
    "nodeSelector",
    "nodeAffinity",
    "tolerations",
    "trainer",
    "template",
    "roles",
    "checkpoint",
)
"""Fields of `spec`."""

# Defaulted fields need no `has`, which makes the expression shorter and cheaper.
_DEFAULTED: Final = frozenset({"queue", "nodes", "gpusPerNode"})
"""Fields that every stored object has."""

_GAVE_BACK: Final = "(!has(oldSelf.status) || !has(oldSelf.status.assignment))"
# Stops at status writes that change the phase, before any field is compared.
_STATUS_WRITE: Final = (
    "(has(self.status) && (!has(oldSelf.status)"
    " || (has(self.status.phase) && has(oldSelf.status.phase)"
    " && self.status.phase != oldSelf.status.phase)))"
)
"""A write through `/status` never changes the spec, and a write through the object never changes
the status. If the phase changed, the spec did not."""
_DEADLINE: Final = "spec.activeDeadlineSeconds"
# Raising the deadline would break promises to jobs that wait for these GPUs.
_DEADLINE_KEPT: Final = (
    f"(!has(oldSelf.{_DEADLINE}) || {_GAVE_BACK}"
    f" || (has(self.{_DEADLINE}) && self.{_DEADLINE} <= oldSelf.{_DEADLINE}))"
)
"""The scheduler lets a short job run on GPUs that are promised from its deadline on."""
_DEADLINE_COMPLAINT: Final = (
    f"({_DEADLINE_KEPT} ? '' : '{_DEADLINE}: activeDeadlineSeconds may only become shorter while"
    " the job holds its nodes, as they are promised to others from then on; set suspend: true"
    " first. ')"
)


def _unchanged(field: str) -> str:
    new, old = f"self.{field}", f"oldSelf.{field}"
    # CEL fails if an absent field is read, so presence is compared first.
    return f"(has({new}) ? has({old}) && {new} == {old} : !has({old}))"


def _spec_unchanged(field: str) -> str:
    if field in _DEFAULTED:
        return f"self.spec.{field} == oldSelf.spec.{field}"
    return _unchanged(f"spec.{field}")


def only_while_suspended(fields: Sequence[str]) -> Rule:
    """Allow a change of these fields only if the job was suspended and had no assignment.

    The rule belongs to the whole object, because it reads spec and status. One rule covers all
    fields: the API server evaluates all rules at every write of a status, and copies the schema of
    all fields at each access to the spec.
    """
    suspend = "may change only while the job is suspended; set suspend: true first"
    complaints = [_complaint(field, suspend=suspend) for field in fields]
    return Rule(
        # Order by cost: the test for a status write, then the comparison, then the old state.
        rule=f"{_STATUS_WRITE}"
        f" || ({' && '.join(map(_spec_unchanged, fields))} && {_DEADLINE_KEPT})"
        f" || (oldSelf.spec.suspend && {_GAVE_BACK})",
        message=f"most of the spec {suspend}",
        # One expression joins the complaints of all fields, and unchanged fields add nothing.
        message_expression=" + ".join([*complaints, _DEADLINE_COMPLAINT]),
        field_path=".spec",
    )


def _complaint(field: str, *, suspend: str) -> str:
    """Return the CEL of the message about a field. It is empty if the field is unchanged."""
    # Two messages: the job is not suspended yet, or it is but still holds nodes.
    wait = f"spec.{field}: wait until the job has given its nodes back (phase Suspended). "
    asleep = f"oldSelf.spec.suspend ? '{wait}' : 'spec.{field}: {field} {suspend}. '"
    return f"({_spec_unchanged(field)} ? '' : {asleep})"


def never(field: str, *, instead: str) -> Rule:
    """Reject every change of `field`, including adding or removing it.

    `instead` names the alternative.
    """
    return Rule(
        rule=_unchanged(field),
        message=f"{field} may never change; {instead}",
        field_path=f".{field}",
    )


def never_added_or_removed(field: str, *, instead: str) -> Rule:
    """Reject adding or removing `field` after the object was created."""
    # Adding a part would mean a job of another kind under the same name.
    return Rule(
        rule=f"has(self.{field}) == has(oldSelf.{field})",
        message=f"{field} can neither be added nor removed; {instead}",
        field_path=f".{field}",
    )


JOB_RULES: Final = (only_while_suspended(ONLY_WHILE_SUSPENDED),)
"""Rules of the whole object."""

SPEC_RULES: Final = (
    never_added_or_removed("trainer", instead="create a new job"),
    never_added_or_removed("checkpoint", instead="create a new job"),
    never("managedBy", instead="create a new job"),
)
