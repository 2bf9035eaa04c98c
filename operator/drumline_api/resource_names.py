"""Decide which resources a pod may request besides its GPUs, in CEL and in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

KNOWN: Final = (
    "key in ['cpu', 'memory', 'ephemeral-storage'] || key.startsWith('hugepages-')"
    " || (key.contains('/') && !key.matches('^([^/]*[.])?kubernetes[.]io/'))"
)
"""CEL over `key`: a resource of Kubernetes, or a device named domain/name."""
GPU: Final = (
    "key.contains('gpu') || key.startsWith('nvidia.com/mig-') || key.startsWith('habana.ai/')"
)
"""CEL over `key`: a GPU, a GPU partition, or a Gaudi."""
LEAST_MEMORY: Final = "1Mi"
"""Smallest amount of memory. A smaller one lacks its unit: 64 is 64 bytes."""
GPU_TAINTS: Final = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
"""Taint keys that keep other pods off GPU nodes. Every job tolerates them, with any effect. They
equal the resource names, as with the admission plugin ExtendedResourceToleration."""
NETWORK_DEVICES: Final = (
    *("rdma/", "vpc.amazonaws.com/efa", "networking.gke.io.networks/", "nvidia.com/hostdev"),
    *("openshift.io/", "mellanox.com/", "intel.com/intel_sriov", "compute-domain.nvidia.com/"),
)
"""Prefixes of devices that are not accelerators. Jobs may request them in every pool. All other
devices of a pool's nodes are rejected unless its `auxiliaryResources` name them, because a vendor
may offer the same chips under several names (aws.amazon.com/neuroncore and neurondevice)."""
_BYTES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000**power) for power, unit in enumerate("kMGTP", 1)},
    **{f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGTP", 1)},
}
"""Bytes of each unit of a quantity."""
_COMPUTE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_OF_KUBERNETES: Final = re.compile(r"^([^/]*[.])?kubernetes[.]io/")


def has_too_little_memory(resources: str) -> str:
    """Return CEL that is true for resources with less than `LEAST_MEMORY`.

    Args:
        resources: CEL of the resources of a pod.
    """
    amount = f"quantity(string({resources}['memory']))"
    return f"'memory' in {resources} && {amount}.isLessThan(quantity('{LEAST_MEMORY}'))"


def lacks_memory(resources: Mapping[str, str]) -> bool:
    """Evaluate `has_too_little_memory` in Python."""
    return "memory" in resources and _bytes(resources["memory"]) < _bytes(LEAST_MEMORY)


def _bytes(quantity: str) -> Decimal:
    number = quantity.rstrip("mkKMGTPi")
    return Decimal(number) * _BYTES[quantity.removeprefix(number)]


def is_gpu(resource: str) -> bool:
    """Evaluate `GPU` in Python."""
    return "gpu" in resource or resource.startswith(("nvidia.com/mig-", "habana.ai/"))


def is_known(resource: str) -> bool:
    """Evaluate `KNOWN` in Python."""
    return resource in _COMPUTE or resource.startswith("hugepages-") or is_device(resource)


def is_device(resource: str) -> bool:
    """Return whether a device plugin offers a resource: domain/name."""
    return "/" in resource and not _OF_KUBERNETES.search(resource)


def is_network_device(resource: str) -> bool:
    """Return whether the name begins with one of `NETWORK_DEVICES`."""
    return resource.startswith(NETWORK_DEVICES)


def shares_gpus(labels: Mapping[str, str]) -> bool:
    """Return whether a node's labels report shared GPUs.

    GPU feature discovery writes them. Without `nvidia.com/gpu.replicas`, the strategy label
    decides.
    """
    replicas = labels.get("nvidia.com/gpu.replicas", "")
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none")
    return strategy not in ("none", "") and replicas != "1"


def is_more_than_nothing(quantity: str) -> bool:
    """Return whether a quantity without sign or exponent is above zero."""
    return any(digit in quantity for digit in "123456789")
