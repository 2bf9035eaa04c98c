"""What is known of the GPUs that a job may get, before it gets any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drumline.api.gpupool import GpuPoolSpec, HardwareSpec
from drumline.api.trainingjob import TrainingJobSpec
from drumline_trainer.config import HardwareConfig
from drumline_trainer.planner.hardware import GPU_MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHardware:
    """The GPUs of a pool."""

    pool: str
    config: HardwareConfig
    """As the ranks get it."""
    refuses: bool
    """Whether a job that cannot fit is refused instead of warned."""

    domain_level: str | None = None
    """Level whose domains are `config.domain_gpus`, where all pools that the job may run in have
    the same; None: they do not, and it is asked for nothing."""

    @property
    def memory_bytes(self) -> int:
        """Of a GPU."""
        return GPU_MODELS[self.config.gpu or ""].memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGpus:
    """What pods of a pool are made with."""

    resource: str
    """Resource that counts its GPUs."""
    hardware: HardwareConfig | None = None
    """What they are; None: the pool does not say, and the ranks look."""

    @classmethod
    def of(cls, spec: GpuPoolSpec) -> PoolGpus:
        """Those of this pool."""
        said = spec.hardware
        known = said is not None and said.gpu in GPU_MODELS
        return cls(
            resource=spec.gpu_resource, hardware=hardware_config(said) if said and known else None
        )


def hardware_config(hardware: HardwareSpec) -> HardwareConfig:
    """A pool's hardware as the ranks get it."""
    return HardwareConfig(
        gpu=hardware.gpu,
        network_gbps=hardware.network_gbps,
        domain_gpus=hardware.domain_gpus,
    )


def largest_hardware(
    spec: TrainingJobSpec, pools: Mapping[str, GpuPoolSpec]
) -> PoolHardware | None:
    """Of the pools that the job may run in, the one whose GPUs have most memory. O(pools).

    What does not fit there fits nowhere. None where one of them does not say what it has: the job
    may fit in that one.
    """
    named = [spec.gpu_pool] if spec.gpu_pool else spec.gpu_pools
    known: list[PoolHardware] = []
    domains = {_domain(pools.get(name)) for name in (pools if named is None else named)}
    level = domains.pop()[0] if len(domains) == 1 else None
    for name in pools if named is None else named:
        pool = pools.get(name)
        if pool is None or pool.hardware is None or pool.hardware.gpu not in GPU_MODELS:
            return None
        known.append(
            PoolHardware(
                pool=name,
                config=hardware_config(pool.hardware),
                refuses=pool.hardware.when_memory_exceeded == "Refuse",
                domain_level=level,
            )
        )
    return max(
        known, key=lambda hardware: (hardware.memory_bytes, not hardware.refuses), default=None
    )


def domain_pods(spec: TrainingJobSpec, hardware: PoolHardware | None) -> int:
    """So many neighbouring pods belong in one domain: 1 where a pod is enough, or nobody says.

    The ranks that share a tensor, and a sequence where both fit; of a gang of one size whose ranks
    choose their layout, as many as a domain has.
    """
    trainer, gpus = spec.trainer, spec.gpus_per_node
    if hardware is None or hardware.domain_level is None or trainer is None:
        return 1
    domain = hardware.config.domain_gpus or gpus
    degrees = trainer.parallelism
    if degrees is None:
        return 1
    if degrees.mode == "Auto":
        sizes = range(min(domain // gpus, spec.nodes), 1, -1) if spec.min_nodes is None else ()
        return next((pods for pods in sizes if spec.nodes % pods == 0), 1)
    for group in (degrees.tensor * degrees.context, degrees.tensor):
        pods, rest = divmod(group, gpus)
        if pods > 1 and not rest and group <= domain and spec.nodes % pods == 0:
            return pods
    return 1


def _domain(pool: GpuPoolSpec | None) -> tuple[str | None, int | None]:
    """Level and size of a pool's domains; none where the pool has no such level."""
    if pool is None or pool.hardware is None:
        return None, None
    level = pool.hardware.domain_level
    known = any(each.name == level for each in pool.topology_levels or ())
    return (level, pool.hardware.domain_gpus) if known else (None, None)
