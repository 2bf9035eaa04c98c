"""GPUs that a job may get: their hardware, their topology, and shares of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drumline_api.gpupool import GpuPoolSpec, HardwareSpec
from drumline_api.podprofile import PodProfile
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract.config import HardwareConfig
from drumline_contract.hardware import GPU_MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSize:
    """A level of the topology, and the number of GPUs in each of its domains."""

    level: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHardware:
    """The GPUs of a pool."""

    pool: str
    config: HardwareConfig
    """Hardware in the form that the ranks get."""
    refuses: bool
    """True if a job that does not fit is refused, False if it is only warned."""

    domain: DomainSize | None = None
    """NVLink domains, if they are the same in all pools that the job may use.

    None if they differ. Then no slice is requested.
    """
    rack: DomainSize | None = None
    """Racks, if they are the same in all pools that the job may use."""

    @property
    def memory_bytes(self) -> int:
        """Return the memory of one GPU in bytes."""
        return GPU_MODELS[self.config.gpu or ""].memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGpus:
    """GPUs and additions that the pods of a pool are made with."""

    resource: str
    """Resource that counts its GPUs."""
    hardware: HardwareConfig | None = None
    """Their hardware. None: the pool does not declare it, and the ranks detect it."""
    profile: PodProfile | None = None
    """Additions of the pool's administrator to its pods."""
    by_claims: bool = False
    """True if pods get GPUs by claims before they are bound."""
    device_class: str = ""
    """DeviceClass of these claims. Empty without claims."""

    @classmethod
    def of(cls, spec: GpuPoolSpec) -> PoolGpus:
        """Return the GPUs of a pool."""
        declared = spec.hardware
        known = declared is not None and declared.gpu in GPU_MODELS
        return cls(
            resource=spec.gpu_resource,
            hardware=hardware_config(declared) if declared and known else None,
            profile=spec.pod_profile,
            by_claims=spec.devices is not None,
            device_class="" if spec.devices is None else spec.devices.device_class_name,
        )


def hardware_config(hardware: HardwareSpec) -> HardwareConfig:
    """Return a pool's hardware as the ranks get it."""
    return HardwareConfig(
        gpu=hardware.gpu,
        network_gbps=hardware.network_gbps,
        domain_gpus=hardware.domain_gpus,
        rack_gpus=hardware.rack_gpus,
        oversubscription=hardware.oversubscription,
    )


def largest_hardware(
    spec: TrainingJobSpec, pools: Mapping[str, GpuPoolSpec]
) -> PoolHardware | None:
    """Return the pool with the most memory per GPU of those that the job may use. O(pools).

    A job that does not fit there fits nowhere. None if a pool does not declare its hardware,
    because the job may fit there. None also for parts of GPUs.
    """
    if spec.gpu_partition:
        return None
    # Without named pools the job may run in all of them.
    named = [spec.gpu_pool] if spec.gpu_pool else spec.gpu_pools
    known: list[PoolHardware] = []
    names = list(pools if named is None else named)
    domain = _common({_domain(pools.get(name)) for name in names})
    rack = _common({_rack(pools.get(name)) for name in names})
    # A pool without declared hardware makes the answer unknown.
    for name in names:
        pool = pools.get(name)
        if pool is None or pool.hardware is None or pool.hardware.gpu not in GPU_MODELS:
            return None
        known.append(
            PoolHardware(
                pool=name,
                config=hardware_config(pool.hardware),
                refuses=pool.hardware.when_memory_exceeded == "Refuse",
                domain=domain,
                rack=rack,
            )
        )
    # A kind that only warns wins among equal memories: the job may start there.
    return max(
        known, key=lambda hardware: (hardware.memory_bytes, not hardware.refuses), default=None
    )


def _domain(pool: GpuPoolSpec | None) -> DomainSize | None:
    """Return the NVLink domains of a pool, or None without such a level."""
    hardware = pool.hardware if pool is not None else None
    return (
        None
        if hardware is None
        else _domain_size(pool, hardware.domain_level, hardware.domain_gpus)
    )


def _rack(pool: GpuPoolSpec | None) -> DomainSize | None:
    """Return the racks of a pool, or None without such a level outside of its domains."""
    hardware = pool.hardware if pool is not None else None
    if pool is None or hardware is None:
        return None
    # A rack level within the domain level would contradict the order of the levels.
    names = [each.name for each in pool.topology_levels or ()]
    inner, outer = hardware.domain_level, hardware.rack_level
    if inner in names and outer in names and names.index(outer) >= names.index(inner):
        return None
    return _domain_size(pool, outer, hardware.rack_gpus)


def _domain_size(
    pool: GpuPoolSpec | None, level: str | None, gpus: int | None
) -> DomainSize | None:
    levels = () if pool is None else pool.topology_levels or ()
    known = any(each.name == level for each in levels)
    return DomainSize(level=level, gpus=gpus) if known and level and gpus else None


def _common(sizes: set[DomainSize | None]) -> DomainSize | None:
    """Return the common value of all pools, or None if they differ."""
    return next(iter(sizes)) if len(sizes) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """A part of a GPU, such as 3 of 7."""

    parts: int
    parts_per_gpu: int


def share_in(pool: GpuPoolSpec | None, *, resource: str | None) -> GpuShare | None:
    """Return the share of a GPU that one of a pool's resource is. None: a whole GPU, or unknown.

    Args:
        pool: None if it is unknown.
        resource: `gpuPartition` of a job. None: the job asks for whole GPUs.
    """
    if pool is None or pool.partitions is None:
        return None
    parts = {each.resource: each.parts for each in pool.partitions.resources}.get(resource or "")
    if parts is None:
        return None
    return GpuShare(parts=parts, parts_per_gpu=pool.partitions.parts_per_gpu)
