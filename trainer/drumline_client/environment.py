"""Determine the rank of this process, and the place of its snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LAUNCHERS: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ("JAX_PROCESS_ID", "", "JAX_NUM_PROCESSES"),
)
"""Variables for rank, local rank and world size of torchrun (and `launch: PerGpu`), Open MPI, MPICH
and Intel MPI, and Slurm. Last: a program that is the only process of its pod, because others
inherit its variables."""
AGENT_VARIABLE: Final = "DRUMLINE_AGENT"
"""Absolute path of the agent's socket. Unset outside Drumline."""
SNAPSHOTS_VARIABLE: Final = "DRUMLINE_SNAPSHOTS"
"""A `SnapshotPlace`. Unset if the pod has no snapshots. It is a variable and not part of the
agent's welcome, so that the restored state does not depend on how fast the agent answers."""


@dataclass(frozen=True)
class SnapshotPlace:
    """Place of the snapshots of an attempt's ranks, and the step that all ranks restore."""

    folder: Path
    """Memory of the pod that outlives its ranks."""
    generation: int
    attempt: int
    restore_step: int | None
    """Newest step of which every rank has a snapshot in this folder, or None."""
    world_size: int | None = None
    """Number of ranks that the agents expect of a launcher. None: the agents started the ranks."""
    first_rank: int = 0
    ranks: int = 0
    """First rank in this pod, and number of ranks in it."""

    def fits(self, place: RankPlace) -> bool:
        """Return whether the agents look for the snapshots of this rank here."""
        # Agents that started the ranks themselves know where each rank is.
        if self.world_size is None:
            return True
        here = range(self.first_rank, self.first_rank + self.ranks)
        return place.world_size == self.world_size and place.rank in here

    def encode(self) -> str:
        """Return a JSON object."""
        return json.dumps(
            {
                "folder": str(self.folder),
                "generation": self.generation,
                "attempt": self.attempt,
                "restore_step": self.restore_step,
                "world_size": self.world_size,
                "first_rank": self.first_rank,
                "ranks": self.ranks,
            }
        )

    @classmethod
    def parse(cls, text: str) -> SnapshotPlace:
        """Parse the text of `encode`, which only the agent writes.

        Raises:
            KeyError: a field is missing.
            ValueError: the text is invalid.
        """
        raw = json.loads(text)
        return cls(
            folder=Path(raw["folder"]),
            generation=int(raw["generation"]),
            attempt=int(raw["attempt"]),
            restore_step=None if raw["restore_step"] is None else int(raw["restore_step"]),
            # Older agents do not set the fields that are read with `get`.
            world_size=None if raw.get("world_size") is None else int(raw["world_size"]),
            first_rank=int(raw.get("first_rank", 0)),
            ranks=int(raw.get("ranks", 0)),
        )


@dataclass(frozen=True)
class RankPlace:
    """A process among the processes of its job."""

    rank: int
    local_rank: int
    world_size: int


def rank_place(
    variables: Mapping[str, str], *, rank: int | None = None, world_size: int | None = None
) -> RankPlace:
    """Return the rank from the arguments, the launcher's variables, or the only rank.

    Args:
        variables: environment variables.
        rank: the rank, if the script knows it.
        world_size: number of ranks, if the script knows it.
    """
    # The first launcher with a valid rank decides: torchrun may run below Slurm.
    names = next((names for names in _LAUNCHERS if _number(variables, names[0]) is not None), None)
    rank_there, local_rank, size = (_number(variables, name) for name in names or ("", "", ""))
    number = (rank_there or 0) if rank is None else rank
    return RankPlace(
        rank=number,
        local_rank=local_rank or 0,
        # At least rank + 1, so that a program that only passes its rank is consistent.
        world_size=max((size or 1) if world_size is None else world_size, number + 1),
    )


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdigit() else None
