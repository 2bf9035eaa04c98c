"""A demand as objects that name PodTemplates: a ProvisioningRequest, or CapacityBuffers.

Nodes of which the gang takes the same share are one template and a number.

    ProvisioningRequest   one for a demand: its autoscaler takes all of it or nothing
    CapacityBuffer        one for each template: room for so many pods, filled anew when it is used

The object of which the record is comes last: where it is, the others are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from drumline.controller.pools.autoscaling import demand_name, record_of
from drumline.controller.pools.placeholder_pods import placeholder_spec, zone_selector
from drumline.kube.kinds import CAPACITY_BUFFERS, POD_TEMPLATES, PROVISIONING_REQUESTS
from drumline_api.autoscaling import BEST_EFFORT_ATOMIC, PoolAutoscaling
from drumline_api.base import ANNOTATION_NODE_DEMAND, LABEL_NODE_DEMAND
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.node_demands import NodeDemand
from drumline_scheduler.model import Gang

Json = dict[str, Any]
ACTIVE_CAPACITY: Final = "buffer.x-k8s.io/active-capacity"

_REFUSALS: Final = ("Failed", "CapacityRevoked")
_FINAL: Final = (*_REFUSALS, "BookingExpired")
"""Of a ProvisioningRequest: they count only where they are true, and more than the others."""
_STATES: Final = (
    "LimitedByQuotas",
    "Provisioning",
    "Provisioned",
    "ReadyForProvisioning",
    "Accepted",
)
"""Later ones are said only where there is none of the earlier ones."""


def templates_of(
    demand: NodeDemand, *, gang: Gang, spec: GpuPoolSpec, metadata: Json, image: str
) -> list[tuple[Json, int]]:
    """The PodTemplates of a demand, and for how many nodes each stands.

    Args:
        demand: what is asked for.
        gang: for whom.
        spec: its pool.
        metadata: namespace, labels and owners of all its objects.
        image: named, never pulled.
    """
    name = demand_name(demand)
    return [
        (
            {
                "apiVersion": POD_TEMPLATES.api_version,
                "kind": POD_TEMPLATES.kind,
                "metadata": {**metadata, "name": f"{name}-{index}"},
                "template": {
                    "metadata": {"labels": {LABEL_NODE_DEMAND: demand.uid}},
                    "spec": placeholder_spec(
                        share, gang=gang, spec=spec, image=image, where=zone_selector(demand.zone)
                    ),
                },
            },
            count,
        )
        for index, (share, count) in enumerate(Counter(demand.shares).items())
    ]


def provisioning_request_of(
    demand: NodeDemand, *, counts: list[int], autoscaling: PoolAutoscaling, metadata: Json
) -> list[Json]:
    """The one object of a demand.

    Args:
        demand: what is asked for.
        counts: for how many nodes each of its templates stands.
        autoscaling: how its pool asks.
        metadata: namespace, labels and owners of all its objects.
    """
    name = demand_name(demand)
    chosen = autoscaling.provisioning_class_name or BEST_EFFORT_ATOMIC
    # of the autoscaler's own: it ends too where nobody withdraws it
    limit = {"ValidUntilSeconds": str(autoscaling.timeout_seconds)}
    return [
        {
            "apiVersion": PROVISIONING_REQUESTS.api_version,
            "kind": PROVISIONING_REQUESTS.kind,
            "metadata": {
                **metadata,
                "name": name,
                "annotations": {ANNOTATION_NODE_DEMAND: record_of(demand)},
            },
            "spec": {
                "provisioningClassName": chosen,
                "parameters": limit if chosen == BEST_EFFORT_ATOMIC else {},
                "podSets": [
                    {"podTemplateRef": {"name": f"{name}-{index}"}, "count": count}
                    for index, count in enumerate(counts)
                ],
            },
        }
    ]


def capacity_buffers_of(
    demand: NodeDemand, *, counts: list[int], autoscaling: PoolAutoscaling, metadata: Json
) -> list[Json]:
    """One object for each template (as `provisioning_request_of`)."""
    del autoscaling
    name = demand_name(demand)
    record = {ANNOTATION_NODE_DEMAND: record_of(demand)}
    buffers: list[Json] = [
        {
            "apiVersion": CAPACITY_BUFFERS.api_version,
            "kind": CAPACITY_BUFFERS.kind,
            "metadata": {
                **metadata,
                "name": f"{name}-{index}",
                "annotations": record if index == 0 else {},
            },
            "spec": {
                "provisioningStrategy": ACTIVE_CAPACITY,
                "podTemplateRef": {"name": f"{name}-{index}"},
                "replicas": count,
            },
        }
        for index, count in enumerate(counts)
    ]
    return buffers[::-1]


def answer_in(status: Mapping[str, Any]) -> str:
    """What the conditions of such an object say; '' where nobody has looked at it."""
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    said = [conditions[name] for name in _FINAL if is_true(status, name)]
    said += [conditions[name] for name in _STATES if name in conditions]
    if not said:
        return ""
    first = said[0]
    text = f"{first['type']}={first.get('status')}, {first.get('reason')}"
    return f"{text}: {first['message']}" if first.get("message") else text


def is_refused(status: Mapping[str, Any]) -> bool:
    """Whether no nodes come for such an object any more, whatever is waited for."""
    return any(is_true(status, condition) for condition in _REFUSALS)


def has_expired(status: Mapping[str, Any]) -> bool:
    """Whether its nodes are nobody's any more: it has to be made anew to be waited for longer."""
    return is_true(status, "BookingExpired") and not is_refused(status)


def is_true(status: Mapping[str, Any], condition: str) -> bool:
    """Whether a condition is there and true."""
    conditions = status.get("conditions") or ()
    return any((each.get("type"), each.get("status")) == (condition, "True") for each in conditions)
