"""Which resources a pod may ask for besides its GPUs, in CEL and in Python."""

from __future__ import annotations

import re
from typing import Final

KNOWN: Final = (
    "key in ['cpu', 'memory', 'ephemeral-storage'] || key.startsWith('hugepages-')"
    " || (key.contains('/') && !key.matches('^([^/]*[.])?kubernetes[.]io/'))"
)
"""CEL of a `key`: of Kubernetes, or a device named domain/name."""
GPU: Final = "key.contains('gpu') || key.startsWith('nvidia.com/mig-')"
"""CEL of a `key`: a GPU or a part of one."""
_COMPUTE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_OF_KUBERNETES: Final = re.compile(r"^([^/]*[.])?kubernetes[.]io/")


def is_gpu(resource: str) -> bool:
    """`GPU` in Python."""
    return "gpu" in resource or resource.startswith("nvidia.com/mig-")


def is_known(resource: str) -> bool:
    """`KNOWN` in Python."""
    is_device = "/" in resource and not _OF_KUBERNETES.search(resource)
    return resource in _COMPUTE or resource.startswith("hugepages-") or is_device


def is_more_than_nothing(quantity: str) -> bool:
    """Of a quantity as the schema has it, without sign or exponent."""
    return any(digit in quantity for digit in "123456789")
