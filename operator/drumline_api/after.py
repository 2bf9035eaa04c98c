"""Define the jobs that a TrainingJob waits for: predecessors, and other jobs of its sweep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Name


class AfterSpec(ApiModel):
    """A job that must end before this job starts."""

    job: Name
    """TrainingJob of the same namespace. It can be created later."""
    condition: Literal["Succeeded", "Finished"] = "Succeeded"
    """Required result: Succeeded, or Finished (succeeded or failed). Default: Succeeded."""


class SweepSpec(ApiModel):
    """Limit on the number of jobs of a sweep that run at once.

    `drumline run --sweep` creates one job for each combination of parameters.
    """

    name: Name
    """Name that all jobs of the sweep share."""
    max_parallel: Annotated[int, Field(ge=1, le=10_000)]
    """The job starts while fewer than this number of the sweep's jobs hold GPUs. Can change at any
    time."""
