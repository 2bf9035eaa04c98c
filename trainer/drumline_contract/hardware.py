"""Performance of GPUs and of the links between them, from the vendors' data sheets.

Bandwidths are bytes per second of one GPU in one direction. Latencies are seconds. `sustained` is
the share of the dense peak that large matrix products reach on the device, within its power limit.
It is the only figure here that is not in a data sheet.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from drumline_contract.config import ConfigError
from drumline_contract.shapes.flops import PEAK_BF16_FLOPS

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One device."""

    name: str
    memory_bytes: int
    """Memory that a process can allocate, as the driver reports it."""
    bf16_flops: float
    """Dense."""
    fp8_flops: float | None
    """Dense; None: the device has no fp8."""
    sustained: float
    """Share of the peak that products of 8192 by 8192 reach."""
    memory_bandwidth: float
    link_bandwidth: float
    """To the GPUs of its own domain (NVLink, Infinity Fabric)."""
    domain: int
    """GPUs of such a domain."""


def _gpu(
    name: str,
    memory_gib: float,
    fp8: float | None,
    *,
    sustained: float,
    memory_bandwidth: float,
    link_bandwidth: float,
    domain: int = 8,
) -> GpuModel:
    return GpuModel(
        name=name,
        memory_bytes=int(memory_gib * _GIB),
        # The peak is that of the chip, whatever the memory of its variant.
        bf16_flops=PEAK_BF16_FLOPS[name.split("-", maxsplit=1)[0]],
        fp8_flops=fp8,
        sustained=sustained,
        memory_bandwidth=memory_bandwidth,
        link_bandwidth=link_bandwidth,
        domain=domain,
    )


_TABLE = (
    _gpu("A100-40GB", 39.4, None, sustained=0.85, memory_bandwidth=1.56e12, link_bandwidth=300e9),
    _gpu("A100-80GB", 79.2, None, sustained=0.85, memory_bandwidth=2.04e12, link_bandwidth=300e9),
    _gpu("H100-96GB", 94.5, 1979e12, sustained=0.55, memory_bandwidth=2.4e12, link_bandwidth=450e9),
    _gpu("H100", 79.2, 1979e12, sustained=0.72, memory_bandwidth=3.35e12, link_bandwidth=450e9),
    _gpu("H200", 139.8, 1979e12, sustained=0.79, memory_bandwidth=4.8e12, link_bandwidth=450e9),
    _gpu("B200", 178.4, 4500e12, sustained=0.74, memory_bandwidth=8.0e12, link_bandwidth=900e9),
    _gpu(
        "GB200",
        184.0,
        5000e12,
        sustained=0.74,
        memory_bandwidth=8.0e12,
        link_bandwidth=900e9,
        domain=72,
    ),
    _gpu("MI300X", 191.5, 2615e12, sustained=0.54, memory_bandwidth=5.3e12, link_bandwidth=448e9),
)
GPU_MODELS = {gpu.name: gpu for gpu in _TABLE}
"""GPU models by name. Memory is as the driver reports it. Bandwidths and peaks are from the data
sheets (SXM or OAM). `sustained` is from published and own measurements of large bf16 products. The
H100 with 96 GB of HBM2e has its default limit of 500 W. A limit of 600 W makes large products 10 to
15 % faster, about the power ratio to the 0.8."""
_ALIASES = {"A100": "A100-80GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way between GPUs."""

    name: str
    bandwidth: float
    latency: float


LINKS = {
    link.name: link
    for link in (
        Link(name="pcie4", bandwidth=25e9, latency=8e-6),
        Link(name="pcie5", bandwidth=50e9, latency=8e-6),
        Link(name="infiniband-hdr", bandwidth=25e9, latency=8e-6),
        Link(name="infiniband-ndr", bandwidth=50e9, latency=8e-6),
        Link(name="infiniband-xdr", bandwidth=100e9, latency=8e-6),
        Link(name="ethernet-100g", bandwidth=12.5e9, latency=15e-6),
        Link(name="ethernet-200g", bandwidth=25e9, latency=15e-6),
        Link(name="ethernet-400g", bandwidth=50e9, latency=12e-6),
    )
}
"""Known links by name: one port per GPU at its line rate. A cluster file may state another."""
LINK_LATENCY = 4e-6
"""Seconds per message inside a domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """GPUs that reach each other without leaving a part of the cluster, and how fast."""

    name: str
    gpus: int
    """Number of neighbouring ranks in one domain of this level. The outermost level holds all
    ranks."""
    bandwidth: float
    """Bandwidth of one GPU to GPUs that share this level but no inner one."""
    latency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCluster:
    """GPUs of one kind on levels from the inside to the outside."""

    gpu: GpuModel
    gpus: int
    levels: tuple[Level, ...] = field(default=())
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        # Bounds that the cost formulas divide by.
        if self.gpus < 1:
            raise ConfigError(f"gpus: must be at least 1, not {self.gpus}")
        for level in self.levels:
            if not (level.bandwidth > 0 and level.latency >= 0 and level.gpus >= 1):
                raise ConfigError(
                    f"network: level {level.name} needs GPUs, a positive bandwidth and a latency of"
                    " at least 0"
                )

    @property
    def domain(self) -> int:
        """GPUs in a domain of the innermost level. Tensor parallelism should not exceed it."""
        # A small cluster can be part of one domain.
        return min(self.levels[0].gpus, self.gpus) if self.levels else 1


def named_gpu(name: str) -> GpuModel:
    """Return the GPU model of this name. Case does not matter.

    Raises:
        ConfigError: the name is unknown; the message suggests the nearest.
    """
    # Cloud catalogs and drivers spell names with spaces, underscores and vendors.
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    by_name = {known.lower(): known for known in (*GPU_MODELS, *_ALIASES)}
    known = by_name.get(wanted) or by_name.get(wanted.removeprefix("nvidia-").removeprefix("amd-"))
    if known is None:
        raise ConfigError(unknown("gpu", name, (*_ALIASES, *GPU_MODELS)))
    return GPU_MODELS[_ALIASES.get(known, known)]


def named_link(name: str, *, field_name: str = "network") -> Link:
    """Return the link of this name.

    Raises:
        ConfigError: the name is unknown; the message suggests the nearest.
    """
    if name not in LINKS:
        raise ConfigError(unknown(field_name, name, LINKS))
    return LINKS[name]


def unknown(field_name: str, value: str, known: Iterable[str]) -> str:
    """Build the message about an unknown name, with the nearest name and all known ones.

    Args:
        field_name: path of the field.
        value: the unknown name.
        known: all valid names.
    """
    names = list(known)
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(value.lower(), lower, n=1, cutoff=0.4)
    hint = f"; did you mean {lower[near[0]]}?" if near else "."
    return f"{field_name}: {value!r} is not known{hint} There are {', '.join(names)}"
