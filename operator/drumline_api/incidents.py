"""Define the status of faults: recent incidents, budgets by class, GPU-seconds.

Times are whole milliseconds or seconds, because the API conventions disallow floating-point
numbers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Final

from pydantic import Field

from drumline_api.assignment import ObjectName
from drumline_api.base import ApiModel, Timestamp, keyed_by
from drumline_contract import FaultClass, RestoreTier

# 24 periods hold the history of a job with a resize each hour of a day.
MAX_STAYS: Final = 24


class IncidentNumber(ApiModel):
    """Membership that a recovery led to."""

    generation: int
    """Generation of the gang's membership."""
    attempt: int
    """Restart in place within that generation. 0: pods were replaced or restarted."""


class IncidentStatus(IncidentNumber):
    """A fault and the recovery from it. Unfinished phases are unset.

    The phases follow each other without a gap, from the fault to the first step after it.
    """

    fault_class: FaultClass
    """Class of the fault: who is responsible for it."""
    cause: Annotated[str, Field(max_length=1024)]
    """Cause in one sentence."""
    index: int | None = None
    """Pod index of the culprit."""
    rank: int | None = None
    """Rank of the culprit."""
    pod: ObjectName | None = None
    """Pod of the culprit."""
    node: ObjectName | None = None
    """Node of the culprit."""
    fault_at: Timestamp
    """Best estimate of the time of the fault, at the latest the last heartbeat of the culprit."""
    detect_milliseconds: int | None = None
    """Time from the fault to its detection, in milliseconds."""
    decide_milliseconds: int | None = None
    """Time to decide the new membership, including the wait for a node, in milliseconds."""
    replace_milliseconds: int | None = None
    """Time until the missing processes or pods were ready, in milliseconds."""
    rendezvous_milliseconds: int | None = None
    """Time until all ranks completed the rendezvous, in milliseconds."""
    restore_milliseconds: int | None = None
    """Time until the state was restored, in milliseconds."""
    first_step_milliseconds: int | None = None
    """Time until the first optimizer step after the fault was finished, in milliseconds."""
    failed_step: int | None = None
    """Number of finished steps at the time of the fault."""
    restored_step: int | None = None
    """Step from which training continued."""
    steps_lost: int | None = None
    """Number of repeated steps."""
    tier: RestoreTier | None = None
    """Source of the restored state."""
    repeats: int = 1
    """Number of consecutive faults without a new step between them, including this fault."""


class Charge(ApiModel):
    """Faults at one time."""

    at: Timestamp
    """Time of the faults."""
    count: int
    """Number of faults at this time."""


class BudgetStatus(ApiModel):
    """Faults of one class."""

    fault_class: FaultClass
    """Class of the faults: who is responsible for them."""
    used: int
    """Number of faults in the whole life of the job."""
    # Entries of the same time are merged, so 64 cover far more faults.
    recent: Annotated[list[Charge], Field(max_length=64)]
    """Faults that may be within recovery.budgetWindowSeconds, oldest first."""


class Stay(ApiModel):
    """A period in which the job held a constant number of GPUs."""

    since: Timestamp
    """Start of the period."""
    until: Timestamp
    """End of the period, or the time up to which it is counted."""
    gpus: int
    """Number of GPUs held."""


class GpuSeconds(ApiModel):
    """GPU-seconds of the job, by use. The sum is the whole time that it held GPUs.

    A GPU partition (gpuPartition) counts as one GPU here, and is `parts` of `partsPerGpu`.
    """

    until: Timestamp
    """Time up to which usage is counted."""
    starting: int = 0
    """GPU-seconds while pods started."""
    productive: int = 0
    """GPU-seconds of training, including checkpoints."""
    repeated: int = 0
    """GPU-seconds of steps repeated after a fault."""
    recovering: int = 0
    """GPU-seconds from a fault to the first step after it, and while a failed gang was kept."""
    stays: Annotated[list[Stay] | None, Field(max_length=MAX_STAYS)] = None
    """Number of GPUs held over time, oldest first, up to `until`. Only the latest periods are kept.
    Unset: nothing was counted yet, or an operator without this field counted."""
    parts: Annotated[int, Field(ge=1, le=64)] | None = None
    """Size of each of the job's GPU partitions in parts, when the job first started. Unset: whole
    GPUs."""
    parts_per_gpu: Annotated[int, Field(ge=2, le=64)] | None = None
    """Number of parts in a whole GPU of the pool. Unset: whole GPUs."""

    @property
    def share(self) -> Fraction:
        """Return the fraction of a GPU that each of its GPUs is."""
        # Objects of an older operator lack the fields, and count whole GPUs.
        if self.parts is None or self.parts_per_gpu is None:
            return Fraction(1)
        return Fraction(self.parts, self.parts_per_gpu)


Budgets = Annotated[
    list[BudgetStatus] | None, Field(max_length=8, json_schema_extra=keyed_by("faultClass"))
]
