"""Shared by all kinds: the model base (camelCase on the wire), CEL rules, schema markers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

GROUP = "drumline.dev"
VERSION = "v1alpha1"

LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_INDEX = f"{GROUP}/index"
LABEL_GENERATION = f"{GROUP}/generation"
LABEL_NODES = f"{GROUP}/nodes"
"""Size of the pod's gang: a budget of its own is for one size."""
LABEL_PROTECTED = f"{GROUP}/protected"
"""`true`: the namespace's PodDisruptionBudget denies the pod's eviction; `false`: a drain may evict
it. Pods without it are protected by a budget of their job's own."""
LABEL_GANG_NETWORK = f"{GROUP}/gang-network"
"""Pods that the namespace's NetworkPolicy shields: those with an agent."""
LABEL_ROLE = f"{GROUP}/role"
"""Name of the role that a pod has beside the ranks of its gang."""
LABEL_QUEUE = f"{GROUP}/queue"
LABEL_POD_GROUP = f"{GROUP}/pod-group"
"""Of pods that are no job's and that our gate holds: those with the same are let go together."""
ANNOTATION_POD_GROUP_SIZE = f"{GROUP}/pod-group-size"
"""How many pods the group has."""
ANNOTATION_ADMITTED = f"{GROUP}/admitted"
"""Of a pod or workload that is no job's: which places its queue had for it. Written by the operator
alone, as a policy of the chart sees to."""
LABEL_WORKLOAD = f"{GROUP}/workload"
"""Of pods of a Job or JobSet that was let go: its uid."""
LABEL_WORKLOAD_PART = f"{GROUP}/workload-part"
"""Which of its replicated jobs a pod is of."""
LABEL_INSTALLATION = f"{GROUP}/installation"
"""Of a GpuPool or TrainingQueue: which of several installations in the cluster it belongs to."""
ANNOTATION_NODE = f"{GROUP}/node"
"""Where a pod of a job will be bound, once its devices are allocated."""
DEVICE_BINDER = f"{GROUP}/devices"
"""schedulerName of such pods: no scheduler but ours looks at them."""
POD_CLAIM_CHANNEL = "drumline-channel"
"""What a pod of a job calls its claim of a channel of the job's ComputeDomain."""
RESOURCE_CHANNEL = "compute-domain.nvidia.com/channel"
"""What such a pod counts as, and a node offers: no pod requests it by this name."""
LABEL_NODE_DEMAND = f"{GROUP}/node-demand"
"""Of a placeholder: the uid of the job for which an autoscaler is asked for nodes."""
LABEL_KEPT_NODE = f"{GROUP}/kept-node"
"""Of a placeholder that keeps a free node from being taken away: the uid of the job for which."""
LABEL_NODE_DEMAND_KIND = f"{GROUP}/node-demand-kind"
"""Of an object that asks for nodes by a PodTemplate, and of the template: the object's kind."""
ANNOTATION_NODE_DEMAND = f"{GROUP}/node-demand"
"""Of a placeholder: what was asked for, so that a new leader can go on with it."""

TAINT_PROMISED = f"{GROUP}/promised"
"""Of a node with a place that a gang was promised: keeps kube-scheduler off, and nobody else."""

TOKEN_SECRET_SUFFIX = "-drumline-token"  # noqa: S105 - a name's end, not a secret
"""Secrets whose names end like this hold the tokens of jobs: no template may name one. Who has a
job's token speaks to its agents as the operator does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One CEL rule (`x-kubernetes-validations`): `rule` must hold, else `message` names the fix.

    A rule that mentions `oldSelf` is a transition rule: the server skips it on creation.
    """

    rule: str
    message: str
    message_expression: str | None = None
    """CEL that gives a message with figures; the server falls back to `message` if it fails."""
    field_path: str | None = None
    """The invalid field, relative to the object that has the rule: `.nodes`."""
    holds: Callable[[Any], bool] | None = None
    """`rule` in Python, for what can be stored without being asked about it: a function of the
    model that has the rule, or of the name where it is about that. Rules of parts of a spec have
    none: they are in the CRD, without which there is no object."""
    explain: Callable[[Any], str] | None = None
    """`message_expression` in Python."""

    def complaint(self, value: Any, *, at: str) -> tuple[str, str] | None:
        """The field's path and what is wrong with it; None where the rule holds or has no Python.

        Args:
            value: what `holds` is a function of.
            at: the path of the object that has the rule: `spec`.
        """
        if self.holds is None or self.holds(value):
            return None
        message = self.message if self.explain is None else self.explain(value)
        return f"{at}{self.field_path or ''}", message


class ApiModel(BaseModel):
    """Base of every part of a custom resource.

    `rules` become CEL validations of this object in the CRD; the docstring under a field becomes
    its description. Unknown fields are ignored here: the API server has pruned or rejected them.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    def model_post_init(self, _context: Any, /) -> None:
        """Share the set of the fields that were given with all models that were given the same.

        pydantic keeps a set of up to 728 bytes with each model and never changes it: of a job in a
        cache that was more than half.
        """
        given = _shared_set(frozenset(self.__pydantic_fields_set__))
        object.__setattr__(self, "__pydantic_fields_set__", given)

    def as_json(self) -> dict[str, Any]:
        """Return the fields that have a value, named as in Kubernetes' JSON."""
        return self.model_dump(by_alias=True, exclude_none=True)


@lru_cache(maxsize=4096)
def _shared_set(names: frozenset[str]) -> set[str]:
    return set(names)


def keyed_by(key: str) -> JsonDict:
    """Schema marker of a list whose items are identified by `key`: duplicates are rejected."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


DISTINCT: Final[JsonDict] = {"x-kubernetes-list-type": "set"}
"""Schema marker of a list of distinct scalars."""


WRITTEN_AS_ONE: Final[JsonDict] = {"x-kubernetes-map-type": "atomic"}
"""Schema marker of an object that one writer replaces as a whole, as the operator does with every
status. The API server keeps who wrote which field in the object itself, and works it out again at
each write; of such an object it keeps one entry instead of one for each field below."""


def validated_by(rule: Rule) -> JsonDict:
    """Schema marker of a scalar that this rule (`self` is the value) must hold of.

    Such a rule is not asked about again while the value stays the same, so a stored object that it
    would refuse can still be changed elsewhere (CRD validation ratcheting).
    """
    return {"x-kubernetes-validations": [{"rule": rule.rule, "message": rule.message}]}


Name = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""A DNS-1123 label."""

LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]


def _is_moment(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Timestamp = Annotated[
    str, AfterValidator(_is_moment), Field(json_schema_extra={"format": "date-time"})
]
"""RFC 3339, UTC."""


def _quantity_text(value: object) -> object:
    """YAML reads `cpu: 4` as a number; quantities are text from here on."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    Field(max_length=32, pattern=_QUANTITY_PATTERN),
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "maxLength": 32, "pattern": _QUANTITY_PATTERN}
    ),
]
"""A Kubernetes quantity without sign or exponent: `4`, `500m`, `1.5Gi`."""


CONTAINER_NAME: Final = Rule(
    rule="self.name != 'trainer' && !self.name.startsWith('drumline-')",
    message="name: trainer and names starting with drumline- are the operator's; choose another"
    " name",
    field_path=".name",
)
"""Of a container beside those that the operator makes."""


def name_rule(*, kind: str, longest: int, why: str) -> Rule:
    """The object's own name is a DNS label: it becomes part of names and a label's value."""
    return Rule(
        rule=f"self.metadata.name.size() <= {longest} && !self.metadata.name.contains('.')",
        message=f"metadata.name: a {kind}'s name has at most {longest} characters and no dots"
        f" ({why}); choose a shorter name",
        holds=lambda name: len(name) <= longest and "." not in name,
    )


def relative_path(field: str, *, optional: bool = False) -> Rule:
    """`field` stays inside the volume it is resolved in."""
    inside = f"!self.{field}.startsWith('/') && !self.{field}.split('/').exists(part, part == '..')"
    return Rule(
        rule=f"!has(self.{field}) || ({inside})" if optional else inside,
        message=f"{field} is relative to the volume: no leading '/' and no '..'; write runs/a",
        field_path=f".{field}",
    )
