"""What the Deployment's settings say of the pods of jobs."""

from __future__ import annotations

from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.settings import Settings


def pod_settings_of(settings: Settings) -> PodSettings:
    """What the Deployment says of the pods of jobs."""
    return PodSettings(
        trainer_image=settings.trainer_image,
        join_image=settings.operator_image,
        agent_image=settings.agent_image or None,
        priority_class=settings.priority_class,
        user=settings.training_user,
        operator_namespace=settings.namespace,
        trainer_pod=settings.trainer_pod,
        max_grace_seconds=int(settings.preemption_seconds),
        metrics_from=settings.metrics_from,
    )
