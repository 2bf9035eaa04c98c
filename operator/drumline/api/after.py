"""What a TrainingJob starts after: other jobs of its namespace."""

from __future__ import annotations

from typing import Literal

from drumline.api.base import ApiModel, Name


class AfterSpec(ApiModel):
    """A job that has to end before this one starts."""

    job: Name
    """TrainingJob of the same namespace; it may be created later."""
    condition: Literal["Succeeded", "Finished"] = "Succeeded"
    """How it has to end: Succeeded, or Finished, which is also Failed. Default: Succeeded."""
