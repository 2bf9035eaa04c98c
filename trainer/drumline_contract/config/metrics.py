"""The sections `metrics` and `profile`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract.config.bounds import Steps
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive


class LogRanks(StrEnum):
    """Ranks that print log lines."""

    FIRST = "first"
    """Rank 0 alone."""
    ALL = "all"
    """Every rank, each line tagged with its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Destinations of metrics. Rank 0 writes all of them, once per logged step."""

    folder: str | None = None
    """Folder for metrics, traces and dumps. None: `metrics` in the checkpoint folder. Without a
    checkpoint folder nothing is written."""
    json_lines: bool = True
    """`steps.jsonl` in that folder, and `evaluations.jsonl`."""
    tensorboard: bool = False
    """`tensorboard/` in that folder."""
    wandb: bool = False
    """`wandb/` in that folder, offline: `wandb sync` sends it where you want, later."""
    wandb_online: bool = False
    """With wandb: send the figures to the server of WANDB_BASE_URL, or to W&B's own, as they come.
    The key is the variable WANDB_API_KEY, from a Secret."""
    wandb_project: str = "drumline"
    """Name of the project that the run belongs to."""
    log_ranks: LogRanks = LogRanks.FIRST

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        if self.folder == "":
            raise ConfigError("metrics.folder: must not be empty; leave it out, or null")
        if self.wandb_online and not self.wandb:
            raise ConfigError("metrics.wandb_online: is for W&B; set metrics.wandb too")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """A window of steps that is recorded by torch.profiler, a trace file for every rank."""

    start_step: Steps | None = None
    """Finished steps when it begins. None: only on demand, by touching `profile-now` in the metrics
    folder."""
    steps: Steps = 3
    """Number of recorded steps."""
    nvtx: bool = False
    """For nsys (`profiling.nsys`): name phases and collectives all the time, and leave the window
    to it, without a trace of our own."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive({"profile.steps": self.steps})
        require_not_negative({"profile.start_step": self.start_step or 0})
