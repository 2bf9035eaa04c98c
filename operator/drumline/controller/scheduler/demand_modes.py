"""What makes demands visible in each mode that GpuPools may have here."""

from __future__ import annotations

from collections.abc import Callable

from drumline.controller.scheduler.demand_objects import DemandObjects, ObjectSettings
from drumline.controller.scheduler.placeholders import Placeholders
from drumline.controller.scheduler.templated_objects import TEMPLATED, TemplatedObjects
from drumline.kube.client import KubeClient
from drumline.settings import Settings


def object_settings(settings: Settings) -> ObjectSettings:
    """Of the objects by which autoscalers are asked."""
    return ObjectSettings(namespace=settings.namespace, image=settings.operator_image)


def demand_modes(
    *, client: KubeClient, settings: Settings, clock: Callable[[], float]
) -> dict[str, DemandObjects]:
    """By the mode of a GpuPool; those that need more rights only where these are given."""
    objects = object_settings(settings)
    return {
        "Placeholders": Placeholders(client=client, settings=objects, clock=clock),
        **{
            mode: TemplatedObjects(client=client, settings=objects, kind=TEMPLATED[mode])
            for mode in settings.autoscaling_modes
        },
    }
