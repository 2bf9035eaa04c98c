"""Platform settings of pods from the operator's installation, and the image that a pod runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drumline.lifecycle.model.images import is_pinned_form
from drumline.lifecycle.model.job import Job

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Settings of the operator's installation for every pod."""

    trainer_image: str
    join_image: str
    """The operator's own image: it contains the standard-library agent that waits for the gang."""
    agent_image: str | None = None
    """An image with the agent and its own Python, for pods with a user's image. None: `join_image`
    has them."""
    priority_class: str = "drumline-training-pods"
    user: int | None = 65532
    """UID and GID for pods whose template sets none. None leaves the choice to the namespace's
    SecurityContextConstraints (OpenShift)."""
    operator_namespace: str = "drumline-system"
    trainer_pod: Json = field(default_factory=dict[str, Any])
    """Platform additions to pods of the bundled trainer: volumes, volumeMounts, env, annotations,
    tolerations, imagePullSecrets. The last also where the join image is pulled."""
    max_grace_seconds: int = 300
    """Longest grace period of a pod, in seconds. A preempted job has this time to save, and no
    template can keep its GPUs for longer."""
    metrics_from: list[Json] = field(default_factory=list[Json])
    """NetworkPolicyPeers that may read the agents' metrics."""


def image_of(job: Job, settings: PodSettings) -> str:
    """Return the main container's image.

    An image that the job names is pinned by its first pods (`pinned_image`) until the job names
    another one. A job that names none keeps the default of its admission over later defaults.
    """
    kept = job.status.image
    named = _named_image(job)
    if kept and (named is None or is_pinned_form(kept, requested=named)):
        return kept
    return named or settings.trainer_image


def new_agent_image(job: Job, settings: PodSettings) -> str | None:
    """Return the image that brings the agent to a job that gets GPUs now. None: none is needed."""
    return None if job.launch is None else settings.agent_image or settings.join_image


def _named_image(job: Job) -> str | None:
    if job.spec.template is not None:
        return job.spec.template.image
    return job.spec.trainer.image if job.spec.trainer is not None else None
