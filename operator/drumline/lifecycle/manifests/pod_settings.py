"""What the operator's installation decides about pods, and the image that a pod runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drumline.lifecycle.model.job import Job

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the operator's installation decides about every pod."""

    trainer_image: str
    join_image: str
    """The operator's own image: it contains the standard-library agent that waits for the gang."""
    priority_class: str = "drumline-training-pods"
    operator_namespace: str = "drumline-system"
    trainer_pod: Json = field(default_factory=dict[str, Any])
    """Platform additions to pods of the bundled trainer: volumes, volumeMounts, env, annotations,
    tolerations, imagePullSecrets. The last also where the join image is pulled."""
    metrics_from: list[Json] = field(default_factory=list[Json])
    """NetworkPolicyPeers that may read the agents' metrics."""


def image_of(job: Job, settings: PodSettings) -> str:
    """The main container's image; the image pinned at admission wins over a new default."""
    if job.status.image:
        return job.status.image
    if job.spec.template is not None:
        return job.spec.template.image
    assert job.spec.trainer is not None  # noqa: S101 - CEL and `InvalidConfig` keep one of the two
    return job.spec.trainer.image or settings.trainer_image
