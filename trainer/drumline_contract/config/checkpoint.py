"""The section `checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config.bounds import Number, Steps
from drumline_contract.config.errors import ConfigError, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When sharded checkpoints are committed, and the number of verified ones that are kept."""

    every_steps: Steps = 50
    """Steps from one checkpoint to the next; the last step has one in any case."""
    keep: Number = 3
    """Number of the newest verified checkpoints that are kept."""
    asynchronous: bool = True
    """Training continues once the state is copied to host memory, which needs room for a second
    copy. The checkpoint is committed a few steps later. Training always waits for the last step's
    checkpoint and for one that a notice requests."""
    continue_from: str = ""
    """Name of the job whose checkpoints this one may continue. Empty: only a job of the same
    namespace and name."""
    snapshot_every_steps: Steps | None = None
    """Snapshots in memory, for recovery without storage. None: as often as they cost at most 3 % of
    the training time."""

    export_every_steps: Steps | None = None
    """Steps from one export to the next: a folder `exports/step-...` beside the checkpoints that
    transformers loads, in the type of `precision`. It is written while training continues. The last
    step has one in any case. None: none."""
    export_keep: Number = 1
    """Number of newest exports that stay."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "checkpoint.snapshot_every_steps": self.snapshot_every_steps or 1,
                "checkpoint.every_steps": self.every_steps,
                "checkpoint.keep": self.keep,
                "checkpoint.export_keep": self.export_keep,
                "checkpoint.export_every_steps": (
                    1 if self.export_every_steps is None else self.export_every_steps
                ),
            }
        )
        if self.export_every_steps is not None and self.export_every_steps % self.every_steps:
            raise ConfigError(
                f"checkpoint.export_every_steps: {self.export_every_steps} must be a multiple of"
                f" checkpoint.every_steps {self.every_steps}; exports are made of checkpoints"
            )
