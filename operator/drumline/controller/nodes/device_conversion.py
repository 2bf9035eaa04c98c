"""Objects that give GPUs to pods by claims (KEP-5004).

A pod requests an extended resource, such as nvidia.com/gpu: 2, and a claim represents the request.
The claim is allocated and reserved for the pod. The pod's status names the claim. Then the pod is
bound. kube-scheduler writes the same objects in the same order. A kubelet that sees a pod without a
claim in its status would start it without devices.
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
    """Return the name of a pod's claim. A pod of another generation has another name."""
    return f"{pod.name}-gpus"


def claim_manifest(pod: PodView, *, devices: GpuDevices, count: int) -> Json:
    """Return the manifest of a pod's claim, which the pod owns.

    Args:
        pod: the owner of the claim.
        devices: device class and selectors of the pool.
        count: number of devices.
    """
    # The annotation marks the claim as one of an extended resource, so that kube-scheduler and the
    # kubelet count it once.
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
    """Return the status of a claim with these devices of a node, reserved for the pod alone.

    Args:
        pod: the pod that uses the claim.
        node: the pod's node.
        devices: devices of this node.
    """
    return _status(pod, node=node, devices={"results": _results(_REQUEST, devices)})


def channel_allocation(
    pod: PodView, channel: ChannelRequest, *, node: str, devices: Sequence[DeviceName]
) -> Json:
    """Return the status of a channel's claim. The driver reads the channel's domain from it.

    Args:
        pod: the pod that uses the claim.
        channel: the claim's request for a channel of a ComputeDomain.
        node: the pod's node.
        devices: the channel of this node.
    """
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
    # The pod must run where its devices are. kube-scheduler sets the same selector.
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocation": {
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}],
    }


def claim_status_of_pod(pod: PodView, *, resource: str) -> Json:
    """Return the pod status that tells the kubelet which claim holds the extended resource."""
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
