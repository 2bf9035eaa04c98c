"""A demand as objects that name PodTemplates: ProvisioningRequest or CapacityBuffer.

Nodes with the same share are one template and a number.

    ProvisioningRequest   one for a demand: its autoscaler takes all of it or nothing
    CapacityBuffer        one for each template: capacity for N pods, refilled when it is used

The object with the record is created last. If it exists, the others do too.
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
"""Final conditions of a ProvisioningRequest. They count only if true, and before the others."""
_STATES: Final = (
    "LimitedByQuotas",
    "Provisioning",
    "Provisioned",
    "ReadyForProvisioning",
    "Accepted",
)
"""In order of precedence: the first one that exists is reported."""


def templates_of(
    demand: NodeDemand, *, gang: Gang, spec: GpuPoolSpec, metadata: Json, image: str
) -> list[tuple[Json, int]]:
    """Return the PodTemplates of a demand, each with the number of its nodes.

    Args:
        demand: the demand.
        gang: the gang that waits for the nodes.
        spec: spec of the demand's pool.
        metadata: namespace, labels and owners of all its objects.
        image: image of the pods. It is never pulled.
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
    """Return the ProvisioningRequest of a demand.

    Args:
        demand: the demand.
        counts: number of nodes for each of its templates.
        autoscaling: autoscaling settings of its pool.
        metadata: namespace, labels and owners of all its objects.
    """
    name = demand_name(demand)
    chosen = autoscaling.provisioning_class_name or BEST_EFFORT_ATOMIC
    # A limit of the autoscaler's own. It ends the request if no operator withdraws it.
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
    """Return one CapacityBuffer for each template (arguments of `provisioning_request_of`).

    Args:
        demand: the nodes to request.
        counts: number of nodes for each template.
        autoscaling: not used. A CapacityBuffer has no class.
        metadata: metadata that all objects share.
    """
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
    # Reversed: the buffer with the record is created last.
    return buffers[::-1]


def answer_in(status: Mapping[str, Any]) -> str:
    """Return the message of an object's conditions, or '' if there are none yet."""
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    shown = [conditions[name] for name in _FINAL if is_true(status, name)]
    shown += [conditions[name] for name in _STATES if name in conditions]
    if not shown:
        return ""
    first = shown[0]
    text = f"{first['type']}={first.get('status')}, {first.get('reason')}"
    return f"{text}: {first['message']}" if first.get("message") else text


def is_refused(status: Mapping[str, Any]) -> bool:
    """Return whether the autoscaler will never add nodes for this object."""
    return any(is_true(status, condition) for condition in _REFUSALS)


def has_expired(status: Mapping[str, Any]) -> bool:
    """Return whether the booking has ended, so that the object must be created again."""
    return is_true(status, "BookingExpired") and not is_refused(status)


def is_true(status: Mapping[str, Any], condition: str) -> bool:
    """Return whether a condition exists and is true."""
    conditions = status.get("conditions") or ()
    return any((each.get("type"), each.get("status")) == (condition, "True") for each in conditions)
