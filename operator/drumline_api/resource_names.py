"""Which resources a pod may ask for besides its GPUs, in CEL and in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

KNOWN: Final = (
    "key in ['cpu', 'memory', 'ephemeral-storage'] || key.startsWith('hugepages-')"
    " || (key.contains('/') && !key.matches('^([^/]*[.])?kubernetes[.]io/'))"
)
"""CEL of a `key`: of Kubernetes, or a device named domain/name."""
GPU: Final = (
    "key.contains('gpu') || key.startsWith('nvidia.com/mig-') || key.startsWith('habana.ai/')"
)
"""CEL of a `key`: a GPU, a part of one, or a Gaudi."""
GPU_TAINTS: Final = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
"""Keys of the taints that keep other pods off nodes with GPUs: every job tolerates them, with any
effect. They are those of the resources, as the admission plugin ExtendedResourceToleration has it.
"""
_COMPUTE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_OF_KUBERNETES: Final = re.compile(r"^([^/]*[.])?kubernetes[.]io/")


def is_gpu(resource: str) -> bool:
    """`GPU` in Python."""
    return "gpu" in resource or resource.startswith(("nvidia.com/mig-", "habana.ai/"))


def is_known(resource: str) -> bool:
    """`KNOWN` in Python."""
    is_device = "/" in resource and not _OF_KUBERNETES.search(resource)
    return resource in _COMPUTE or resource.startswith("hugepages-") or is_device


def shares_gpus(labels: Mapping[str, str]) -> bool:
    """Whether a node's labels say that one GPU is several of its resource.

    GPU feature discovery writes them. Without `nvidia.com/gpu.replicas` the strategy counts alone.
    """
    replicas = labels.get("nvidia.com/gpu.replicas", "")
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none")
    return strategy not in ("none", "") and replicas != "1"


def is_more_than_nothing(quantity: str) -> bool:
    """Of a quantity as the schema has it, without sign or exponent."""
    return any(digit in quantity for digit in "123456789")
