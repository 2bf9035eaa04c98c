"""A sweep: jobs of a namespace that differ in their parameters, only so many of them at a time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from drumline.api.base import ApiModel, Name


class SweepSpec(ApiModel):
    """Other jobs of the namespace beside which this one starts only while few enough of them run.

    `drumline run --sweep` writes one job for each combination of parameters.
    """

    name: Name
    """What the jobs of the sweep have in common."""
    max_parallel: Annotated[int, Field(ge=1, le=10_000)]
    """The job starts while fewer of them than this hold GPUs. May change at any time."""
