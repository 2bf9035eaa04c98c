"""Processors beside a GPU: those of the NUMA node that it is attached to. Standard library; Linux.

What a rank allocates on the host lies in the memory of the node that it runs on. Pinned buffers of
another node are copied over the link between the processors, which all GPUs of a node share. The
driver says at which address of the PCI bus a GPU is, the kernel to which node that belongs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_GPUS = "proc/driver/nvidia/gpus"
_DEVICES = "sys/bus/pci/devices"
_NODES = "sys/devices/system/node"


def bind_near_gpu(identity: str, *, root: Path = Path("/")) -> None:
    """Bind this thread, and the threads that it starts, to the allowed processors near the GPU.

    Do nothing if the location of the GPU is unknown, or if no allowed processor is near it.

    Args:
        identity: `GPU-` and its UUID. The bus does not list parts of a GPU (MIG).
        root: root of the file system.
    """
    allowed = os.sched_getaffinity(0)
    near = allowed & processors_near_gpu(identity, root=root)
    # An empty set would fail, and an equal one changes nothing.
    if near and near != allowed:
        os.sched_setaffinity(0, near)


def processors_near_gpu(identity: str, *, root: Path = Path("/")) -> set[int]:
    """Return the processors of the GPU's NUMA node. Empty: unknown."""
    for description in (root / _GPUS).glob("*/information"):
        # Drivers without these files, and node -1 on machines with one node, end in "unknown".
        with suppress(OSError, ValueError):
            if identity and identity in description.read_text().split():
                # sysfs writes addresses in lower case.
                address = description.parent.name.lower()
                node = int((root / _DEVICES / address / "numa_node").read_text())
                return _numbers((root / _NODES / f"node{node}" / "cpulist").read_text())
    return set()


def _numbers(text: str) -> set[int]:
    """Read a list such as `0-3,8`, as the kernel writes them.

    Raises:
        ValueError: it is not such a list.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
