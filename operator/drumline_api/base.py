"""Define what all kinds share: the model base (camelCase in JSON), CEL rules, schema markers."""

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

# Labels are immutable in practice: selectors of running pods depend on them.
LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_INDEX = f"{GROUP}/index"
LABEL_GENERATION = f"{GROUP}/generation"
LABEL_NODES = f"{GROUP}/nodes"
"""Number of pods in the pod's gang. Each PodDisruptionBudget of a job covers one size."""
LABEL_PROTECTED = f"{GROUP}/protected"
"""`true`: the namespace's PodDisruptionBudget denies eviction of the pod. `false`: a drain may
evict the pod. Pods without the label are protected by a budget of their own job."""
LABEL_GANG_NETWORK = f"{GROUP}/gang-network"
"""Pods with an agent, which the namespace's NetworkPolicy protects."""
LABEL_ROLE = f"{GROUP}/role"
"""Name of the pod's role, for pods beside the ranks of a gang."""
LABEL_QUEUE = f"{GROUP}/queue"
LABEL_POD_GROUP = f"{GROUP}/pod-group"
"""Group of a gated pod that belongs to no job. Pods with the same value are released together."""
ANNOTATION_POD_GROUP_SIZE = f"{GROUP}/pod-group-size"
"""Number of pods in the group."""
ANNOTATION_ADMITTED = f"{GROUP}/admitted"
"""Nodes that the queue found for a pod or workload that belongs to no job. Only the operator may
write it. A policy of the chart enforces this."""
LABEL_WORKLOAD = f"{GROUP}/workload"
"""UID of the released Job or JobSet that the pod belongs to."""
LABEL_WORKLOAD_PART = f"{GROUP}/workload-part"
"""Replicated job of a JobSet that the pod belongs to."""
LABEL_INSTALLATION = f"{GROUP}/installation"
"""Installation that a GpuPool or TrainingQueue belongs to, if the cluster has several."""
ANNOTATION_NODE = f"{GROUP}/node"
"""Node to which a pod of a job will be bound after its devices are allocated."""
LABEL_DRY_RUN = "drumline.dev/dry-run"
"""Label of an object that is never stored: a dry run shows whether its name is taken."""
ANNOTATION_SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: its volume is to be provisioned where this node can use it."""
DEVICE_BINDER = f"{GROUP}/devices"
"""schedulerName of these pods. No other scheduler binds them."""
POD_CLAIM_CHANNEL = "drumline-channel"
"""Name of a pod's claim for a channel of the job's ComputeDomain."""
RESOURCE_CHANNEL = "compute-domain.nvidia.com/channel"
"""Internal resource name for such a channel, of pods and nodes. Pods never request it by this
name."""
LABEL_NODE_DEMAND = f"{GROUP}/node-demand"
"""For a placeholder: UID of the job that needs the nodes."""
LABEL_KEPT_NODE = f"{GROUP}/kept-node"
"""For a placeholder that keeps a free node from scale-down: UID of the job that will use the
node."""
LABEL_NODE_DEMAND_KIND = f"{GROUP}/node-demand-kind"
"""For an object that requests nodes by a PodTemplate, and for the template: kind of the object."""
ANNOTATION_NODE_DEMAND = f"{GROUP}/node-demand"
"""For a placeholder: the requested nodes, so that a new leader can continue the request."""

TAINT_PROMISED = f"{GROUP}/promised"
"""Taint of a node that is promised to a gang. It keeps only kube-scheduler off the node."""

TOKEN_SECRET_SUFFIX = "-drumline-token"  # noqa: S105 - a name's end, not a secret
"""Name suffix of the Secrets that hold tokens of jobs. No template may name such a Secret. A client
with a job's token has the operator's rights at the job's agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A CEL rule (`x-kubernetes-validations`).

    `rule` must be true. Otherwise the server returns `message`, which names the fix. The server
    skips rules with `oldSelf` (transition rules) on creation.
    """

    rule: str
    message: str
    message_expression: str | None = None
    """CEL expression for a message with figures. The server uses `message` if the expression
    fails."""
    field_path: str | None = None
    """Invalid field, relative to the object that has the rule: `.nodes`."""
    holds: Callable[[Any], bool] | None = None
    """`rule` in Python, for objects that can be stored without a check. Takes the model that has
    the rule, or the name for a rule about the name. Rules of parts of a spec have none: the CRD
    contains them."""
    explain: Callable[[Any], str] | None = None
    """`message_expression` in Python."""

    def complaint(self, value: Any, *, at: str) -> tuple[str, str] | None:
        """Return the field's path and the error, or None if the rule holds or has no Python.

        Args:
            value: argument of `holds`.
            at: path of the object that has the rule, such as `spec`.
        """
        # A rule without Python cannot be broken here. The CRD has checked it.
        if self.holds is None or self.holds(value):
            return None
        message = self.message if self.explain is None else self.explain(value)
        return f"{at}{self.field_path or ''}", message


class ApiModel(BaseModel):
    """Base class of every part of a custom resource.

    `rules` become CEL validations of this object in the CRD. The docstring below a field becomes
    its description. Unknown fields are ignored here, because the API server has pruned or rejected
    them.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        # Code writes snake_case, JSON has camelCase, and both are accepted on input.
        populate_by_name=True,
        frozen=True,
        # Unknown fields come from a newer CRD during an upgrade, so they must not raise.
        extra="ignore",
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    def model_post_init(self, _context: Any, /) -> None:
        """Share the set of given fields between all models that were given the same fields.

        pydantic keeps a set of up to 728 bytes with each model and never changes it. In the cache
        it used more than half of a job's memory.
        """
        # Frozen models reject assignment, so the attribute is set through `object`.
        given = _shared_set(frozenset(self.__pydantic_fields_set__))
        object.__setattr__(self, "__pydantic_fields_set__", given)

    def as_json(self) -> dict[str, Any]:
        """Return the fields that have a value, with their JSON names."""
        return self.model_dump(by_alias=True, exclude_none=True)


# Bounded: a few hundred combinations of fields occur in practice.
@lru_cache(maxsize=4096)
def _shared_set(names: frozenset[str]) -> set[str]:
    return set(names)


def keyed_by(key: str) -> JsonDict:
    """Return the schema marker of a list without duplicates, keyed by `key`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


DISTINCT: Final[JsonDict] = {"x-kubernetes-list-type": "set"}
"""Schema marker of a list of distinct scalars."""


WRITTEN_AS_ONE: Final[JsonDict] = {"x-kubernetes-map-type": "atomic"}
"""Schema marker of an object that one writer replaces as a whole, such as a status. The API server
records the writer of each field in the object and recomputes the record at each write. With this
marker it keeps one entry instead of one per field."""


def validated_by(rule: Rule) -> JsonDict:
    """Return the schema marker of a scalar that must satisfy this rule (`self` is the value).

    The API server does not check such a rule while the value stays the same. Other fields of a
    stored object can therefore change even if the rule rejects its value (CRD validation
    ratcheting).
    """
    return {"x-kubernetes-validations": [{"rule": rule.rule, "message": rule.message}]}


# The server compiles patterns as RE2, and pydantic in Rust. Both lack look-ahead.
Name = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""A DNS-1123 label."""

Subdomain = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
"""A DNS-1123 subdomain, such as the name of a Secret or ConfigMap."""

LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        # 253 characters of prefix, a slash and 63 characters of name.
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]


def _is_moment(text: str) -> str:
    # The server checks format and pattern. Stored objects may be older than them.
    datetime.fromisoformat(text)
    return text


# The server's `date-time` also has lower-case letters, any offset and year 0. Python reads none of
# them, so one such time would make a whole object unreadable.
_MOMENT_PATTERN: Final = (
    r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
Timestamp = Annotated[
    str,
    AfterValidator(_is_moment),
    Field(json_schema_extra={"format": "date-time", "pattern": _MOMENT_PATTERN}),
]
"""RFC 3339, UTC."""


def _quantity_text(value: object) -> object:
    """Convert numbers to text: YAML reads `cpu: 4` as a number."""
    # `bool` is an `int` in Python, and `cpu: true` is a mistake.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# No sign and no exponent: a request is positive, and users read plain numbers.
_QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    Field(max_length=32, pattern=_QUANTITY_PATTERN),
    WithJsonSchema(
        # int-or-string: the server accepts `4` and `"4"`, and `kubectl` shows what was written. It
        # compares only texts with the pattern, and only numbers with the minimum.
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "minimum": 0,
            "pattern": _QUANTITY_PATTERN,
        }
    ),
]
"""A Kubernetes quantity without sign or exponent: `4`, `500m`, `1.5Gi`."""


CONTAINER_NAME: Final = Rule(
    rule="self.name != 'trainer' && !self.name.startsWith('drumline-')",
    message="name: trainer and names that start with drumline- are reserved for the operator;"
    " choose another name",
    field_path=".name",
)
"""Name of a container beside those that the operator creates."""


def name_rule(*, kind: str, longest: int, why: str) -> Rule:
    """Require a DNS label as object name, because names and label values contain it.

    Args:
        kind: kind of the object.
        longest: largest number of characters.
        why: reason for the limit, for the message.
    """
    return Rule(
        # A rule at the root may read only metadata.name and generateName of the metadata.
        rule=f"self.metadata.name.size() <= {longest} && !self.metadata.name.contains('.')",
        message=f"metadata.name: a {kind}'s name must have at most {longest} characters and no"
        f" dots ({why}); choose a shorter name",
        holds=lambda name: len(name) <= longest and "." not in name,
    )


def relative_path(field: str, *, optional: bool = False) -> Rule:
    """Require that `field` stays inside the volume that it is relative to."""
    # `..` is compared per part, so that `a..b` stays a valid name.
    inside = f"!self.{field}.startsWith('/') && !self.{field}.split('/').exists(part, part == '..')"
    return Rule(
        rule=f"!has(self.{field}) || ({inside})" if optional else inside,
        message=f"{field} must be relative to the volume, without a leading '/' and without '..';"
        " for example runs/a",
        field_path=f".{field}",
    )
