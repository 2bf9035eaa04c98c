"""The parts of a step that are measured and predicted: the same few for every layout."""

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
    """Waiting for messages of tensor parallelism; so below, each of its axis."""
    CONTEXT = "context"
    EXPERT = "expert"
    DATA = "data"
    """Sums of gradients, gathered weights."""
    PIPELINE = "pipeline"
    """Waiting for other stages."""
    OPTIMIZER = "optimizer"
    REST = "rest"
    """Samples, and between the phases. Checkpoints and snapshots do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPartSeconds:
    """One part, in the mean over the steps since the layout began."""

    part: StepPart
    measured: float
    predicted: float
    """Seconds predicted by the planner, without calibration."""


def parse_step_parts(raw: dict[str, Any], key: str) -> tuple[StepPartSeconds, ...]:
    """Decode the known parts that have both figures. Empty if the key is absent.

    Raises:
        ContractError: it is not a list of at most that many objects.
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
