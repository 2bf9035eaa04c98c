"""Pods that get their GPUs by claims -> the objects that give them these (KEP-5004).

A pod asks for an extended resource, such as nvidia.com/gpu: 2. Its claim stands for that; the claim
is allocated and reserved for the pod, the pod's status names it, and then the pod is bound. This is
what kube-scheduler writes, in its order: a kubelet that sees a pod without a claim in its status
would start it without devices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from drumline.kube.device_codec import CHANNEL_DRIVER, EXTENDED_CLAIM
from drumline.kube.device_views import ChannelRequest, DeviceName
from drumline.kube.views import PodView
from drumline.lifecycle.manifests.containers import TRAINER_CONTAINER
from drumline_api.gpupool import GpuDevices

Json = dict[str, Any]
_REQUEST: Final = "gpus"


def claim_name(pod: PodView) -> str:
    """The name of a pod's claim: a pod of another generation has another."""
    return f"{pod.name}-gpus"


def claim_manifest(pod: PodView, *, devices: GpuDevices, count: int) -> Json:
    """A pod's claim; it goes with the pod."""
    exactly = {
        "deviceClassName": devices.device_class_name,
        "allocationMode": "ExactCount",
        "count": count,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim_name(pod),
            "namespace": pod.namespace,
            "annotations": {EXTENDED_CLAIM: "true"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.name,
                    "uid": pod.uid,
                    "controller": True,
                }
            ],
        },
        "spec": {"devices": {"requests": [{"name": _REQUEST, "exactly": exactly}]}},
    }


def allocation(pod: PodView, *, node: str, devices: Sequence[DeviceName]) -> Json:
    """The status of a claim to which these devices of a node are allocated, for the pod alone."""
    return _status(pod, node=node, devices={"results": _results(_REQUEST, devices)})


def channel_allocation(
    pod: PodView, channel: ChannelRequest, *, node: str, devices: Sequence[DeviceName]
) -> Json:
    """The same of a claim of a channel: the driver reads in it which domain the channel is of."""
    config = {
        "source": "FromClaim",
        "requests": [channel.request],
        "opaque": {"driver": CHANNEL_DRIVER, "parameters": json.loads(channel.parameters)},
    }
    allocated = {"results": _results(channel.request, devices), "config": [config]}
    return _status(pod, node=node, devices=allocated)


def _results(request: str, devices: Sequence[DeviceName]) -> list[Json]:
    return [
        {
            "request": request,
            "driver": device.driver,
            "pool": device.pool,
            "device": device.device,
        }
        for device in devices
    ]


def _status(pod: PodView, *, node: str, devices: Json) -> Json:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocation": {
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}],
    }


def claim_status_of_pod(pod: PodView, *, resource: str) -> Json:
    """What says to the kubelet which claim stands for the pod's extended resource."""
    return {
        "extendedResourceClaimStatus": {
            "resourceClaimName": claim_name(pod),
            "requestMappings": [
                {
                    "containerName": TRAINER_CONTAINER,
                    "resourceName": resource,
                    "requestName": _REQUEST,
                }
            ],
        }
    }
