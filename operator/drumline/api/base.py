"""What all kinds share: the model base (camelCase on the wire), CEL rules, schema markers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "drumline.dev"
VERSION = "v1alpha1"

LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_INDEX = f"{GROUP}/index"
LABEL_GENERATION = f"{GROUP}/generation"
LABEL_QUEUE = f"{GROUP}/queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One CEL rule (`x-kubernetes-validations`): `rule` must hold, else `message` names the fix."""

    rule: str
    message: str
    field_path: str | None = None
    optional_old_self: bool = False


class ApiModel(BaseModel):
    """Base of every part of a custom resource.

    `rules` become CEL validations of this object in the CRD. Unknown fields are ignored here: the
    API server has pruned or refused them already.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )
    rules: ClassVar[tuple[Rule, ...]] = ()


Name = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""A DNS-1123 label."""

LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]
