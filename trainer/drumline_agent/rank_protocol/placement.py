"""The placement of a rank process: which rank of which attempt it is, and where the store is.

Standard library only: the agent makes a `Placement` and hands it to the forked rank process.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

_FOLDERS = ("checkpoint_folder", "snapshot_folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank of one attempt of one generation."""

    rank: int
    world_size: int
    local_rank: int = 0
    """Index among the ranks of this pod: picks the GPU and the CPU share."""
    local_world_size: int = 1
    store_host: str = "127.0.0.1"
    """Host of the rendezvous store (`rank.serve_store`), which never runs inside a rank."""
    store_port: int = 29500
    owner: str = ""
    """Uid of the job: sets its memberships apart from those of others. Empty: no job."""
    job: str = ""
    """`namespace/name` of the job; empty: no job."""
    generation: int = 0
    """Raised by the operator alone, from 1; 0 is a run without an operator."""
    attempt: int = 0
    """Restart in place within the generation; (generation, attempt) orders a job's memberships."""
    checkpoint_folder: Path | None = None
    """Folder shared by all ranks, for checkpoints and metrics."""
    checkpoint_bucket: str | None = None
    """URL of a bucket's prefix for the checkpoints instead. Neither: nothing is saved and every
    start is from step 0."""
    acknowledged_step: int | None = None
    """Newest step that the operator knows to be saved. The run never resumes from an older one.
    None: any checkpoint is accepted, and without one the run starts from step 0."""
    acknowledged_digest: str = ""
    """Digest the manifest of that very step must have; empty accepts any verified one."""
    snapshot_folder: Path | None = None
    """Memory of this pod that outlives its ranks (`drumline_client.snapshot_file`), or None: no
    snapshots are taken."""
    restore_snapshot: int | None = None
    """Step of the snapshot to resume from, whose file for this rank is in the folder. The newest
    checkpoint is used if this is None, or if the snapshot does not verify on every rank."""
    previous_ranks: int | None = None
    """GPUs that the gang trained on before this generation; None: it has not trained."""
    address: str = ""
    """IP address of this pod that peers connect to; empty: what the host name resolves to."""

    def __post_init__(self) -> None:
        """Raise ValueError for a rank outside its world."""
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is outside a world of {self.world_size}")
        if not 0 <= self.local_rank < self.local_world_size:
            raise ValueError(
                f"local rank {self.local_rank} is outside {self.local_world_size} local ranks"
            )

    def saving_to(self, place: Path | str | None) -> Placement:
        """Return the same placement with its checkpoints in this folder or bucket."""
        if isinstance(place, str):
            return replace(self, checkpoint_bucket=place)
        return replace(self, checkpoint_folder=place)

    @property
    def has_checkpoints(self) -> bool:
        """True if there is a place for checkpoints."""
        return self.checkpoint_folder is not None or self.checkpoint_bucket is not None

    @property
    def starts_first(self) -> bool:
        """True if no rank of this job was started before, so that nothing is trained yet."""
        return self.attempt == 0 and self.previous_ranks is None

    @property
    def membership(self) -> tuple[int, int]:
        """(generation, attempt), compared lexicographically: lower ones are stale.

        Without an operator each launch counts its own attempts, so they order nothing.
        """
        return (self.generation, self.attempt) if self.generation else (0, 0)

    def to_json(self) -> str:
        """Return one line of JSON; `from_json` reads it back."""
        whole = asdict(self)
        for name in _FOLDERS:
            whole[name] = None if whole[name] is None else str(whole[name])
        return json.dumps(whole, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Placement:
        """Read `to_json`'s line. Raises TypeError or ValueError for anything else."""
        decoded: object = json.loads(text)
        if not isinstance(decoded, dict):
            raise TypeError(f"not a placement: {type(decoded).__name__}")
        raw = cast("dict[str, Any]", decoded)
        for name in _FOLDERS:
            raw[name] = None if raw.get(name) is None else Path(raw[name])
        return cls(**raw)
