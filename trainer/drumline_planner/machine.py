"""The cluster that ranks run on, from detected devices and from `hardware` of the configuration.

A device that is not in the table gets the memory that its driver reports, and a speed guessed from
its name. This is good enough to order layouts, but not to predict their time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumline_contract.config import HardwareConfig
from drumline_contract.hardware import GPU_MODELS, GpuCluster, GpuModel, Link, named_gpu
from drumline_contract.shapes.flops import peak_flops
from drumline_planner.network import Wiring, cluster_of

_GIB = 1 << 30
_NETWORK_LATENCY = 8e-6
_GBPS = 1e9 / 8
_SAME_MEMORY = 0.15
"""Maximum relative difference to identify one of two memory sizes of a model (A100)."""

PROCESSOR = GpuModel(
    name="processor",
    memory_bytes=8 * _GIB,
    bf16_flops=50e9,
    fp8_flops=None,
    sustained=0.5,
    memory_bandwidth=5e9,
    link_bandwidth=1e9,
    domain=8,
)
"""A rank without a GPU, for tests, with Gloo to the others. It is the same on every host, because
the hosts of one gang differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice:
    """Properties of the device that a process detects."""

    name: str
    """Name from the driver, such as `NVIDIA H100 80GB HBM3`. Empty: the processor."""
    memory_bytes: int
    """Total memory."""


def machine(
    hardware: HardwareConfig, *, gpus: int, gpus_per_node: int, seen: SeenDevice | None = None
) -> GpuCluster:
    """Return the cluster to plan for.

    Args:
        hardware: the configuration; its kind of GPU takes precedence over the device's name.
        gpus: number of ranks.
        gpus_per_node: ranks of a pod, or of a host.
        seen: the detected device; None: only the configuration counts.

    Raises:
        ConfigError: `hardware.gpu` is not in the table, or neither source states the GPUs.
    """
    return cluster_of(
        device_of(hardware, seen),
        gpus=gpus,
        network=link_of(hardware),
        gpus_per_node=gpus_per_node,
        domain=hardware.domain_gpus,
        wiring=wiring_of(hardware),
    )


def link_of(hardware: HardwareConfig) -> Link:
    """Return the link from each GPU to other nodes."""
    return Link(
        name=f"{hardware.network_gbps} Gb/s",
        bandwidth=hardware.network_gbps * _GBPS,
        latency=_NETWORK_LATENCY,
    )


def wiring_of(hardware: HardwareConfig) -> Wiring:
    """Return the network between nodes: flat, or racks with less bandwidth between them."""
    if hardware.rack_gpus is None:
        return Wiring()
    return Wiring(group=hardware.rack_gpus, oversubscription=hardware.oversubscription)


def device_of(hardware: HardwareConfig, seen: SeenDevice | None) -> GpuModel:
    """Return the device that the configuration names, or the detected device.

    Raises:
        ConfigError: neither is known.
    """
    if seen is None or hardware.gpu is not None:
        return named_gpu(hardware.gpu or "")
    if not seen.name:
        return PROCESSOR
    # rounded, so that all ranks of a gang plan for the same: drivers differ by some MiB
    memory = max(1, seen.memory_bytes // _GIB) * _GIB
    return replace(recognized(seen), memory_bytes=memory)


def recognized(seen: SeenDevice) -> GpuModel:
    """Return the table's device of this name and size, or a guess from both."""
    words = f" {seen.name.replace('-', ' ')} "
    known = [name for name in GPU_MODELS if f" {name.partition('-')[0]} " in words]
    nearest = min(
        known, key=lambda name: abs(GPU_MODELS[name].memory_bytes - seen.memory_bytes), default=None
    )
    if nearest is not None:
        size = GPU_MODELS[nearest].memory_bytes
        if abs(size - seen.memory_bytes) < _SAME_MEMORY * size:
            return GPU_MODELS[nearest]
    if known:
        return GPU_MODELS[known[-1]]
    return GpuModel(
        name=seen.name,
        memory_bytes=seen.memory_bytes,
        bf16_flops=peak_flops(seen.name) or 200e12,
        fp8_flops=None,
        sustained=0.6,
        memory_bandwidth=1e12,
        link_bandwidth=25e9,
        domain=8,
    )
