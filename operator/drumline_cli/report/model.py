"""The report of one job: every figure and sentence that is shown.

A `JobReport` is built by `builder` from an object of the API server; the renderers (`text`, `html`,
`json_output`) only lay it out. Its texts are plain (see `contract.plain`), its times are seconds
since the epoch. The stages of an incident follow each other without gaps. Their milliseconds add up
to the duration of the incident.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract import ComputePoint, StepPoint
from drumline_contract.prompt_answers import ContinuedPrompts


class Health(StrEnum):
    """Health of a job."""

    WELL = "well"
    WAITS = "waits"
    RECOVERS = "recovers"
    FAILED = "failed"


# The stages add up to the incident, so no figure is stored twice.
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStage:
    """One part of a recovery."""

    name: str
    """Name of the stage."""
    begins_at: float
    """Its begin."""
    milliseconds: int
    """Its length."""
    meaning: str
    """Meaning of the stage, as a sentence."""
    under_way: bool = False
    """Not over yet: its length is that up to now."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.milliseconds / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentReport:
    """One fault and the recovery from it."""

    number: str
    """The membership it led to, as generation.attempt."""
    fault_class: str
    """Class of the fault. Budgets count by class."""
    cause: str
    """Cause of the fault, as a sentence."""
    root_cause: str
    """Pod, rank and node at fault; empty where none is known."""
    node: str
    """Node at fault; empty where none is known."""
    detection: str
    """Detection of the fault and its duration."""
    at: float
    """When the fault happened."""
    stages: tuple[RecoveryStage, ...]
    """The recovery, in the order of time."""
    over: bool
    """The first step after it is done."""
    failed_step: int | None
    """The step that the fault broke off."""
    restored_step: int | None
    """The step whose state training went on from."""
    lost_steps: int | None
    """Steps that were done again."""
    tier: str
    """Source of the state, as a sentence. Empty while unknown."""

    @property
    def milliseconds(self) -> int:
        """From the fault to the first step after it, or until now."""
        return sum(stage.milliseconds for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Return the durations in seconds."""
        return self.milliseconds / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSecondsShare:
    """GPU-seconds that a job spent in one state."""

    state: str
    """Use of the GPU-seconds."""
    gpu_seconds: float
    """Number of GPU-seconds."""
    share: float
    """Share of all its GPU-seconds."""
    productive: bool
    """Whether they made lasting progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSecondsLoss:
    """GPU-seconds that faults of one class cost."""

    state: str
    """State that used the GPUs instead of training: Recovering or Repeated."""
    fault_class: str
    """Class of the faults, or `earlier` for those that are on record no more."""
    gpu_seconds: int
    """GPU-seconds of that state, divided among the recorded incidents by duration, or by the steps
    that each cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBudget:
    """Restarts of one class, in its sliding window."""

    fault_class: str
    """Class of the counted faults."""
    used: int
    """Restarts within the window."""
    allowed: int | None
    """None: no limit."""
    total: int
    """Since the job exists."""
    next_back_at: float | None
    """When the oldest restart that counts leaves the window."""

    @property
    def left(self) -> int | None:
        # More restarts than allowed can be on record after the limit was lowered.
        """Restarts that may still happen; None where there is no limit."""
        return None if self.allowed is None else max(self.allowed - self.used, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A part of the timeline in one state."""

    state: str
    """State of the job."""
    begins_at: float
    """Its begin."""
    ends_at: float
    """Its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the API server about the job."""

    at: float | None
    """When it was last seen."""
    warning: bool
    """Whether the event is a warning."""
    reason: str
    """One word for it."""
    note: str
    """Text of the event."""
    times: int
    """Number of occurrences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One line of the summary."""

    name: str
    """Name of the figure."""
    value: str
    """The figure, with its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """One job, at one moment."""

    namespace: str
    """The job's namespace."""
    name: str
    """The job's name."""
    as_of: float
    """When it was read."""
    health: Health
    """Health of the job."""
    phase: str
    """One word for what it does."""
    reason: str
    """Why it is in this phase; empty: nothing is said."""
    summary: str
    """Current activity of the job, and its reason."""
    progress: float | None
    """Share of its steps that are finished."""
    series: tuple[StepPoint, ...]
    """Figures of the run, by rising steps."""
    compute_by_rank: tuple[ComputePoint, ...]
    """Compute time of its ranks relative to each other, by increasing steps."""
    answers: ContinuedPrompts
    """Continued prompts of its newest evaluation."""
    facts: tuple[SummaryRow, ...]
    """The lines of the summary."""
    incidents: tuple[IncidentReport, ...]
    """Newest first."""
    shares: tuple[GpuSecondsShare, ...]
    """Use of its GPU-seconds."""
    losses: tuple[GpuSecondsLoss, ...]
    """GPU-seconds lost in faults, largest first."""
    budgets: tuple[RestartBudget, ...]
    """Restarts left, by class."""
    timeline: tuple[TimelineSpan, ...]
    """States of the job, in order of time."""
    next_steps: tuple[str, ...]
    """Recommended actions. Empty: none."""
    events: tuple[EventRow, ...]
    """Newest first."""
    remarks: tuple[str, ...]
    """Objects that could not be read for this report."""

    @property
    def goodput(self) -> float | None:
        """Share of the GPU-seconds that made lasting progress; None where none are known."""
        if not self.shares:
            return None
        return sum(share.share for share in self.shares if share.productive)
