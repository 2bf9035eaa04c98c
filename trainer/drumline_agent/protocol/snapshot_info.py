"""The description of one snapshot, which travels in place of the file or beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from drumline_contract import json_fields as read

MAX_SNAPSHOT_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """One rank's snapshot of one step."""

    rank: int
    step: int
    generation: int
    attempt: int
    """The membership that took it."""
    world_size: int
    bytes: int
    sha256: str

    @property
    def membership(self) -> tuple[int, int]:
        """(generation, attempt) that took it."""
        return self.generation, self.attempt

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> SnapshotInfo:
        """Check every field. Raises ContractError."""
        return cls(
            rank=read.integer(raw, "rank"),
            step=read.integer(raw, "step"),
            generation=read.integer(raw, "generation"),
            attempt=read.integer(raw, "attempt"),
            world_size=read.integer(raw, "world_size", low=1),
            bytes=read.integer(raw, "bytes", high=MAX_SNAPSHOT_BYTES),
            sha256=read.text(raw, "sha256", limit=64),
        )

    @classmethod
    def from_json(cls, text: str) -> SnapshotInfo:
        """Read `to_json`'s line. Raises ContractError."""
        return cls.parse(read.json_object(text.encode(), 4096))
