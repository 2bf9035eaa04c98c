"""Identity of a compiled program: everything that decides the kernels of torch.compile.

torch's own keys are exact. So a name with too few details costs a compilation and one with too many
a file, but neither gives wrong results. torch checks the processor's features only when it
compiles, so libraries that were compiled elsewhere must be for a processor like this one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Layout

_OF_CONFIG: Final = (
    *("model", "precision", "fp8", "fp8_scaling", "lora", "dpo", "compile", "deterministic"),
    *("memory", "parallelism", "global_batch_size", "micro_batch_size"),
)
_OF_DATA: Final = ("sequence_length", "packing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program that the ranks of a pod compile."""

    digest: str
    """Digest of the run, equal on all pods with equal machines."""
    first_stage: int
    last_stage: int
    """Last pipeline stage on the ranks of this pod."""
    writes: bool
    """True if this rank keeps it: the first one of the first pod with these stages."""

    @classmethod
    def of(
        cls, config: TrainerConfig, layout: Layout, *, placement: Placement, device: torch.device
    ) -> Self:
        """Compute the program of this rank.

        Ranks of a pod are neighbours, and so are those of a stage.

        Args:
            config: configuration of the run.
            layout: degrees of parallelism.
            placement: rank and pod of this process.
            device: device of the rank.
        """
        of_stage = layout.world_size // layout.pipeline
        # Ranks are numbered by pod, so the first rank of the pod is rank - local rank.
        first = max(0, placement.rank - placement.local_rank)
        last = min(layout.world_size, first + placement.local_world_size) - 1
        stage = first // of_stage
        return cls(
            digest=_digest(
                _settings(config),
                repr(layout),
                placement.local_world_size,
                _software(),
                _machine(device),
            ),
            first_stage=stage,
            last_stage=last // of_stage,
            # Pods of one stage compile the same program. Its first pod keeps it.
            writes=placement.local_rank == 0
            and first - stage * of_stage < placement.local_world_size,
        )

    @property
    def name(self) -> str:
        """Name of its file, below the kept ones."""
        return f"{self.digest}/{self.first_stage}-{self.last_stage}.kernels"

    @property
    def folder(self) -> str:
        """Name of its folder on this machine."""
        return f"{self.digest}-{self.first_stage}-{self.last_stage}"


def _settings(config: TrainerConfig) -> dict[str, Any]:
    whole = config.to_dict()
    return {name: whole[name] for name in _OF_CONFIG} | {
        name: whole["data"][name] for name in _OF_DATA
    }


def _software() -> list[str]:
    """Return versions.

    A library may not load beside an older C library than it was compiled with.
    """
    versions = [str(torch.__version__), str(torch.version.git_version), platform.python_version()]
    versions += platform.libc_ver()
    # Distributions differ in their libraries even at equal versions.
    with suppress(OSError):  # where there is no os-release
        system = platform.freedesktop_os_release()
        versions += [system.get("ID", ""), system.get("VERSION_ID", "")]
    with suppress(importlib.metadata.PackageNotFoundError):  # of processors' builds
        versions.append(importlib.metadata.version("triton"))
    return versions


def _machine(device: torch.device) -> list[str]:
    """Return the kind of GPU and the processor's features, which run the compiled code."""
    kind = [platform.machine(), str(torch.get_num_threads()), _processor_flags()]
    if device.type == "cuda":
        # Kernels are tuned for a GPU model, and binaries for its compute capability.
        major, minor = torch.cuda.get_device_capability(device)
        kind += [torch.cuda.get_device_name(device), f"{major}.{minor}", str(torch.version.cuda)]
    return kind


def _processor_flags(listing: Path = Path("/proc/cpuinfo")) -> str:
    """Return the features of the first core, which x86 calls flags and Arm features."""
    with suppress(OSError):
        for line in listing.read_text().splitlines():
            name, _, flags = line.partition(":")
            if name.strip() in {"flags", "Features"}:
                # Sorted, because kernels list the flags in different orders.
                return " ".join(sorted(flags.split()))
    return platform.processor()


def _digest(*facts: object) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    # 128 bits of the hash suffice for a name.
    return hashlib.sha256(text.encode()).hexdigest()[:32]
