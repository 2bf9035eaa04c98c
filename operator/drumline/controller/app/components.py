"""What a leader has beside its components: settings of pods, and a look at announcements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drumline.controller.cache.cluster import ClusterCache
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.settings import Settings

ANNOUNCEMENT_SECONDS = 5.0
"""At least this often announced disruptions are judged again."""


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


async def check_announcements(
    state: ClusterCache, *, enqueue: Callable[[str], None], wake: asyncio.Event
) -> None:
    """A disruption that is announced for a stated time comes near without an event of its node."""
    while True:
        await asyncio.sleep(ANNOUNCEMENT_SECONDS)
        for change in state.nodes.check_announcements():
            if change.schedulable:
                wake.set()
            for key in change.jobs:
                enqueue(key)
