"""What the planner does for a job, in one call."""

from __future__ import annotations

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.jobstatus import TrainingJobStatus
from tests.builders import EPOCH, T0, observed


def planned(job: Job, seen: Observed | None = None, *, now: float = T0 + 1) -> JobPlan:
    """Return the plan for a job of which this is seen; nothing by default."""
    return plan_job(job, seen or observed(), now=now, epoch=EPOCH)


def decided(job: Job, seen: Observed, *, now: float = T0 + 1) -> TrainingJobStatus:
    """Return the status that the planner writes."""
    status = planned(job, seen, now=now).status
    assert status is not None
    return status
