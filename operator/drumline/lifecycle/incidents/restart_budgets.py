"""Restart budgets: recoveries allowed by class of fault in a sliding window.

Charges are stored in the status and leave the window only by age. The count over the life of the
job never decreases.
"""

from __future__ import annotations

from drumline.lifecycle.model.conditions import changed
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.incidents import BudgetStatus, Charge
from drumline_api.jobstatus import TrainingJobStatus
from drumline_api.trainingjob import RecoverySpec
from drumline_contract import FaultClass

MAX_CHARGES = 64
FIELDS = {
    FaultClass.APPLICATION: "maxRestarts",
    FaultClass.OUT_OF_MEMORY: "maxOutOfMemoryRestarts",
    FaultClass.HANG: "maxHangRestarts",
    FaultClass.INFRASTRUCTURE: "maxInfrastructureRestarts",
}
"""The field of spec.recovery that limits a class."""
OWN_FAULTS = (FaultClass.APPLICATION, FaultClass.OUT_OF_MEMORY, FaultClass.HANG)
"""Classes of faults that the training program itself causes."""


def limit_of(recovery: RecoverySpec, fault_class: FaultClass) -> int | None:
    """Return the recoveries allowed within the window, or None without a limit."""
    match fault_class:
        case FaultClass.APPLICATION:
            return recovery.max_restarts
        case FaultClass.OUT_OF_MEMORY:
            return recovery.max_out_of_memory_restarts
        case FaultClass.HANG:
            return recovery.max_hang_restarts
        case FaultClass.INFRASTRUCTURE:
            return recovery.max_infrastructure_restarts
        case FaultClass.PREEMPTION:
            return None


def used(
    status: TrainingJobStatus, recovery: RecoverySpec, fault_class: FaultClass, *, at: float
) -> int:
    """Return the number of faults of this class in the window that ends at `at`.

    Later ones count too: the clock was set back, or that of an earlier leader was ahead.

    Args:
        status: the job's present status.
        recovery: limits and the window.
        fault_class: class of the fault.
        at: Unix time in seconds.
    """
    begin = at - recovery.budget_window_seconds
    return sum(
        charge.count
        for budget in status.budgets or ()
        if budget.fault_class is fault_class
        for charge in budget.recent
        if parse_timestamp(charge.at) > begin
    )


def remaining(status: TrainingJobStatus, recovery: RecoverySpec, *, at: float) -> dict[str, int]:
    """Return the recoveries still allowed within the window, by class with a limit.

    Args:
        status: the job's present status.
        recovery: limits and the window.
        at: Unix time in seconds.
    """
    limits = {kind: limit_of(recovery, kind) for kind in FaultClass}
    return {
        str(kind): max(0, limit - used(status, recovery, kind, at=at))
        for kind, limit in limits.items()
        if limit is not None
    }


def with_charge(
    status: TrainingJobStatus, recovery: RecoverySpec, fault_class: FaultClass, *, at: float
) -> TrainingJobStatus:
    """Return the status with one more fault of this class.

    At most MAX_CHARGES entries are kept. Beyond that the two oldest are merged at the later time of
    both. So a fault may count for longer than the window, but never for shorter.

    Example with MAX_CHARGES = 2: charges 10:00 x1, 11:00 x1 and a new fault at 12:00 become 11:00
    x2, 12:00 x1.

    Args:
        status: the job's present status.
        recovery: limits and the window.
        fault_class: class of the fault.
        at: Unix time of the fault.
    """
    # Other classes keep their charges: each class has its own budget.
    budgets = {budget.fault_class: budget for budget in status.budgets or ()}
    before = budgets.get(fault_class) or BudgetStatus(fault_class=fault_class, used=0, recent=[])
    # Drop charges that left the window. They never count again.
    begin = at - recovery.budget_window_seconds
    recent = [charge for charge in before.recent if parse_timestamp(charge.at) > begin]
    recent = sorted([*recent, Charge(at=timestamp(at), count=1)], key=lambda charge: charge.at)
    # Bound the status. A program that crashes in a loop must not grow it.
    if len(recent) > MAX_CHARGES:
        oldest, second, *rest = recent
        recent = [Charge(at=second.at, count=oldest.count + second.count), *rest]
    budgets[fault_class] = BudgetStatus(
        fault_class=fault_class, used=before.used + 1, recent=recent
    )
    return changed(
        status,
        budgets=[budgets[kind] for kind in FaultClass if kind in budgets],
        restarts=(status.restarts or 0) + 1,
    )
