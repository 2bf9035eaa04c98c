"""The parts of status about faults: the last incidents, budgets by class, GPU-seconds.

Times are whole milliseconds or seconds: the API conventions want no floating point numbers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Final

from pydantic import Field

from drumline_api.assignment import ObjectName
from drumline_api.base import ApiModel, Timestamp, keyed_by
from drumline_contract import FaultClass, RestoreTier

MAX_STAYS: Final = 24


class IncidentNumber(ApiModel):
    """The membership that a recovery led to."""

    generation: int
    """Membership of the gang."""
    attempt: int
    """Restart in place inside that generation; 0: pods were replaced or restarted."""


class IncidentStatus(IncidentNumber):
    """One fault and the recovery from it. A phase that is not over yet is absent.

    The phases follow each other without a gap, from the fault to the first step after it.
    """

    fault_class: FaultClass
    """Who answers for it."""
    cause: Annotated[str, Field(max_length=1024)]
    """One sentence for people."""
    index: int | None = None
    """Pod index of the culprit."""
    rank: int | None = None
    """Rank of the culprit."""
    pod: ObjectName | None = None
    """Pod of the culprit."""
    node: ObjectName | None = None
    """Node of the culprit."""
    fault_at: Timestamp
    """When it struck, as well as it is known: the culprit's last sign of life at the latest."""
    detect_milliseconds: int | None = None
    """From the fault until it was noticed."""
    decide_milliseconds: int | None = None
    """Until the new membership was settled, waiting for a place included."""
    replace_milliseconds: int | None = None
    """Until the missing processes or pods stood ready."""
    rendezvous_milliseconds: int | None = None
    """Until all ranks had met again."""
    restore_milliseconds: int | None = None
    """Until their state was restored."""
    first_step_milliseconds: int | None = None
    """Until the first optimizer step after it was finished."""
    failed_step: int | None = None
    """Steps finished when it struck."""
    restored_step: int | None = None
    """Step that training went on from."""
    steps_lost: int | None = None
    """Steps that were done twice."""
    tier: RestoreTier | None = None
    """Where the restored state came from."""
    repeats: int = 1
    """How many faults in a row, this one included, came without a new step between them."""


class Charge(ApiModel):
    """Faults at one time."""

    at: Timestamp
    """When it was charged."""
    count: int
    """How many at that time."""


class BudgetStatus(ApiModel):
    """Faults of one class."""

    fault_class: FaultClass
    """Who answers for them."""
    used: int
    """In the whole life of the job."""
    recent: Annotated[list[Charge], Field(max_length=64)]
    """Those that may still lie within recovery.budgetWindowSeconds, oldest first."""


class Stay(ApiModel):
    """A time in which the job held the same number of GPUs."""

    since: Timestamp
    """When it began to."""
    until: Timestamp
    """Up to when is counted, or its end."""
    gpus: int
    """How many it held."""


class GpuSeconds(ApiModel):
    """What the job's GPUs were held for, in GPU-seconds; together all of the time it held them.

    A part of a GPU (gpuPartition) counts here as one, and is `parts` of `partsPerGpu`.
    """

    until: Timestamp
    """Time up to which this is counted."""
    starting: int = 0
    """Pods came up."""
    productive: int = 0
    """Training went on, checkpoints included."""
    repeated: int = 0
    """Steps were done again that a fault had undone."""
    recovering: int = 0
    """Between a fault and the first step after it, and while a gang that failed was held."""
    stays: Annotated[list[Stay] | None, Field(max_length=MAX_STAYS)] = None
    """When it held how many, oldest first, up to `until`; of many the latest. Absent: nothing was
    counted yet, or by an operator that kept none."""
    parts: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many parts of a GPU each of its GPUs was when it first started. Absent: whole GPUs."""
    parts_per_gpu: Annotated[int, Field(ge=2, le=64)] | None = None
    """How many parts a whole GPU of its pool has. Absent: whole GPUs."""

    @property
    def share(self) -> Fraction:
        """What of a GPU each of its GPUs is."""
        if self.parts is None or self.parts_per_gpu is None:
            return Fraction(1)
        return Fraction(self.parts, self.parts_per_gpu)


Budgets = Annotated[
    list[BudgetStatus] | None, Field(max_length=8, json_schema_extra=keyed_by("faultClass"))
]
