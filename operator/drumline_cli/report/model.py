"""The report of one job: every figure and sentence that is shown.

A `JobReport` is built by `builder` from an object of the API server; the renderers (`text`, `html`,
`json_output`) only lay it out. Its texts are plain (see `contract.plain`), its times are seconds
since the epoch. The stages of an incident follow each other without gaps: their milliseconds add up
to the incident's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract import ComputePoint, StepPoint


class Health(StrEnum):
    """How a job is, at a glance."""

    WELL = "well"
    WAITS = "waits"
    RECOVERS = "recovers"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStage:
    """One part of a recovery."""

    name: str
    """What is done in it."""
    begins_at: float
    """Its begin."""
    milliseconds: int
    """Its length."""
    meaning: str
    """What it means, as a sentence."""
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
    """What kind of fault it was; budgets count by it."""
    cause: str
    """What happened, as a sentence."""
    root_cause: str
    """Pod, rank and node at fault; empty where none is known."""
    node: str
    """Node at fault; empty where none is known."""
    detection: str
    """How and how fast it was detected."""
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
    """Where the state came from, as a sentence; empty while not known."""

    @property
    def milliseconds(self) -> int:
        """From the fault to the first step after it, or until now."""
        return sum(stage.milliseconds for stage in self.stages)

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return self.milliseconds / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSecondsShare:
    """GPU-seconds that a job spent in one state."""

    state: str
    """What they were spent on."""
    gpu_seconds: float
    """How many."""
    share: float
    """Of all its GPU-seconds."""
    productive: bool
    """Whether they made lasting progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSecondsLoss:
    """GPU-seconds that faults of one class cost."""

    state: str
    """What the GPUs were held for instead: Recovering or Repeated."""
    fault_class: str
    """Class of the faults, or `earlier` for those that are on record no more."""
    gpu_seconds: int
    """Of that state, divided among the incidents on record by how long each took, or by the steps
    that each cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartBudget:
    """Restarts of one class, in its sliding window."""

    fault_class: str
    """Which faults it counts."""
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
        """Restarts that may still happen; None where there is no limit."""
        return None if self.allowed is None else max(self.allowed - self.used, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A part of the timeline in one state."""

    state: str
    """What the job did."""
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
    """Whether it is a warning."""
    reason: str
    """One word for it."""
    note: str
    """What it says."""
    times: int
    """How often it was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One line of the summary."""

    name: str
    """What it is a figure of."""
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
    """How it is, at a glance."""
    phase: str
    """One word for what it does."""
    reason: str
    """Why it is in this phase; empty: nothing is said."""
    summary: str
    """What it is doing now, and why."""
    progress: float | None
    """Share of its steps that are finished."""
    series: tuple[StepPoint, ...]
    """Figures of the run, by rising steps."""
    compute_by_rank: tuple[ComputePoint, ...]
    """How long its ranks computed against each other, by rising steps."""
    facts: tuple[SummaryRow, ...]
    """The lines of the summary."""
    incidents: tuple[IncidentReport, ...]
    """Newest first."""
    shares: tuple[GpuSecondsShare, ...]
    """Where its GPU-seconds went."""
    losses: tuple[GpuSecondsLoss, ...]
    """What of them faults cost, the largest first."""
    budgets: tuple[RestartBudget, ...]
    """Restarts left, by class."""
    timeline: tuple[TimelineSpan, ...]
    """What it did, in the order of time."""
    next_steps: tuple[str, ...]
    """What to do; empty: nothing."""
    events: tuple[EventRow, ...]
    """Newest first."""
    remarks: tuple[str, ...]
    """What this report could not see."""

    @property
    def goodput(self) -> float | None:
        """Share of the GPU-seconds that made lasting progress; None where none are known."""
        if not self.shares:
            return None
        return sum(share.share for share in self.shares if share.productive)
