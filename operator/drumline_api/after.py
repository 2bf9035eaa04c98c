"""Other jobs of a namespace that a TrainingJob waits for: earlier ones, and those of a sweep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Name


class AfterSpec(ApiModel):
    """A job that has to end before this one starts."""

    job: Name
    """TrainingJob of the same namespace; it may be created later."""
    condition: Literal["Succeeded", "Finished"] = "Succeeded"
    """How it has to end: Succeeded, or Finished, which is also Failed. Default: Succeeded."""


class SweepSpec(ApiModel):
    """Other jobs of the namespace beside which this one starts only while few enough of them run.

    `drumline run --sweep` writes one job for each combination of parameters.
    """

    name: Name
    """What the jobs of the sweep have in common."""
    max_parallel: Annotated[int, Field(ge=1, le=10_000)]
    """The job starts while fewer of them than this hold GPUs. May change at any time."""
