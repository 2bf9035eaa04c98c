"""What a rank says about itself while it trains. Standard library only.

A rank sends one heartbeat whenever its phase changes and `heartbeat_seconds` have passed since the
last one, always one when it finishes a checkpoint, and a last one in phase `done`. The reader (the
agent) treats silence as a hang: `time_seconds` is the sender's monotonic clock, comparable between
processes of one machine only.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """What a rank is doing. Collectives wait in `forward`, `backward` and `optimizer`."""

    STARTING = "starting"
    RESTORING = "restoring"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One sign of life."""

    generation: int
    attempt: int
    rank: int
    step: int
    """Finished optimizer steps."""
    total_steps: int
    phase: Phase
    loss: float | None = None
    """Mean over the global batch, at log cadence; the same on every rank."""
    tokens_per_second: float | None = None
    """Over all ranks, since the last logged step."""
    step_seconds: float | None = None
    """Mean since the last logged step, checkpoints excluded."""
    mfu: float | None = None
    """Model FLOP utilization (`metrics.flops`); None on a device without a known peak."""
    checkpoint_step: int | None = None
    """Newest checkpoint this attempt committed or restored."""
    checkpoint_digest: str = ""
    """Digest of that checkpoint's manifest."""
    checkpoint_seconds: float | None = None
    """How long training stood still for the newest commit."""
    time_seconds: float
    """The sender's monotonic clock."""

    def to_json(self) -> str:
        """One line of JSON; a loss that is not finite becomes null."""
        whole = asdict(self)
        for key in ("loss", "tokens_per_second"):
            if whole[key] is not None and not math.isfinite(whole[key]):
                whole[key] = None
        return json.dumps(whole, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        """Read `to_json`'s line. Raises TypeError or ValueError for anything else."""
        raw: dict[str, Any] = json.loads(text)
        return cls(**{**raw, "phase": Phase(raw["phase"])})
