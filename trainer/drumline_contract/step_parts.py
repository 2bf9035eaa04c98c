"""Define the parts of a step that are measured and predicted. All layouts have the same parts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from drumline_contract import json_fields as read


class StepPart(StrEnum):
    """Purpose that a step's time is spent on."""

    COMPUTE = "compute"
    """Forward and backward passes, without waiting for other ranks."""
    TENSOR = "tensor"
    """Waiting for messages of tensor parallelism. The next parts count messages of other axes."""
    CONTEXT = "context"
    EXPERT = "expert"
    DATA = "data"
    """Waiting for sums of gradients and for gathered weights."""
    PIPELINE = "pipeline"
    """Waiting for other stages."""
    OPTIMIZER = "optimizer"
    REST = "rest"
    """Reading samples, and time between the phases. Excludes checkpoints and snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPartSeconds:
    """Seconds of one part, as a mean over the steps since the layout began."""

    part: StepPart
    measured: float
    predicted: float
    """Seconds predicted by the planner, without calibration."""


def parse_step_parts(raw: dict[str, Any], key: str) -> tuple[StepPartSeconds, ...]:
    """Decode the step parts. Skip unknown ones, and those without measured or predicted seconds.

    Returns:
        The parts; empty if the key is absent.

    Raises:
        ContractError: the value is not a list of objects, or has more objects than `StepPart`.
    """
    known = set(StepPart)
    parts: dict[StepPart, StepPartSeconds] = {}
    for entry in read.objects(raw, key, limit=len(StepPart)):
        name = read.text(entry, "part")
        measured = read.optional_number(entry, "measured")
        predicted = read.optional_number(entry, "predicted")
        if name in known and measured is not None and predicted is not None:
            part = StepPart(name)
            parts[part] = StepPartSeconds(part=part, measured=measured, predicted=predicted)
    return tuple(parts.values())
