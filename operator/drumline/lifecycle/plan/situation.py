"""Input of a plan: the job, its gang, the observations, the time and the leader."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.gang import ObservedGang, observed_gang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline_api.conditions import ConditionType
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import RemarkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """An admitted job at one moment."""

    job: Job
    gang: ObservedGang
    observed: Observed
    now: float
    """Seconds since the epoch."""
    epoch: int
    """Epoch of the leader that writes the decision."""

    @classmethod
    def of(cls, job: Job, observed: Observed, *, now: float, epoch: int) -> Situation:
        """Return the situation of a job that has an assignment. O(members + pods).

        Args:
            job: the job with its present status.
            observed: pods, agents and nodes of the job.
            now: Unix time in seconds.
            epoch: epoch of this leader.
        """
        # Computed once for a plan: every step reads the same members and pods.
        gang = observed_gang(job, observed)
        return cls(job=job, gang=gang, observed=observed, now=now, epoch=epoch)

    @property
    def is_running(self) -> bool:
        """Return whether the job's condition Running is True."""
        return is_true(self.job.status, ConditionType.RUNNING)

    @property
    def is_held(self) -> bool:
        """Return whether the agents keep the pods of a gang that has failed for good."""
        remark = self.observed.remark
        return remark is not None and remark.kind is RemarkKind.HELD

    @property
    def saves_on_request(self) -> bool:
        """Return whether the agents can be asked to save.

        For a template only if its program acknowledges saves. A held gang has nothing to save any
        more.
        """
        if self.is_held:
            return False
        if self.job.runs_trainer:
            return self.job.spec.checkpoint is not None
        return self.job.is_supervised and self.observed.acknowledges_saves

    @property
    def is_acknowledged(self) -> bool:
        """Return whether the store's agent has acknowledged the record of this generation."""
        return self.observed.acknowledged_generation == self.job.status.generation

    def with_status(self, status: TrainingJobStatus) -> Situation:
        """Return the situation with another status. Gang and observations stay."""
        return replace(self, job=replace(self.job, status=status))
