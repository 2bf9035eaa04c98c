"""Which rank this process is, by the variables of its launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_RANK: Final = (
    "RANK",
    "JAX_PROCESS_ID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
)
_LOCAL_RANK: Final = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
_WORLD_SIZE: Final = (
    "WORLD_SIZE",
    "JAX_NUM_PROCESSES",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
)
"""torchrun (and `launch: PerGpu`) first, then JAX, Open MPI, MPICH and Intel MPI, Slurm."""


@dataclass(frozen=True)
class RankPlace:
    """A process among those of its job."""

    rank: int
    local_rank: int
    world_size: int


def rank_place(
    variables: Mapping[str, str], *, rank: int | None = None, world_size: int | None = None
) -> RankPlace:
    """What the arguments say, else the launcher's variables, else the only rank."""
    number = _first(variables, _RANK, 0) if rank is None else rank
    size = _first(variables, _WORLD_SIZE, 1) if world_size is None else world_size
    return RankPlace(
        rank=number,
        local_rank=_first(variables, _LOCAL_RANK, 0),
        world_size=max(size, number + 1),
    )


def _first(variables: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if variables.get(name, "").isdigit():
            return int(variables[name])
    return default
