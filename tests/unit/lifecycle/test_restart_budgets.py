"""Budgets by class: durable counts in a window that slides."""

from __future__ import annotations

import pytest

from drumline.lifecycle.incidents import restart_budgets as budgets
from drumline_api.jobstatus import TrainingJobStatus
from drumline_api.trainingjob import RecoverySpec
from drumline_contract import FaultClass
from tests.builders import T0

RECOVERY = RecoverySpec(budget_window_seconds=100, max_restarts=3)
APPLICATION = FaultClass.APPLICATION


def charged(*times: float, fault_class: FaultClass = APPLICATION) -> TrainingJobStatus:
    status = TrainingJobStatus()
    for time in times:
        status = budgets.with_charge(status, RECOVERY, fault_class, at=time)
    return status


def test_faults_fall_out_of_the_window_and_stay_in_the_sum() -> None:
    status = charged(T0, T0 + 60, T0 + 90)
    counts = [budgets.used(status, RECOVERY, APPLICATION, at=T0 + at) for at in (90, 100, 190)]
    assert counts == [3, 2, 0]
    (budget,) = charged(T0, T0 + 60, T0 + 300).budgets or []
    assert (budget.used, len(budget.recent)) == (3, 1)


def test_a_clock_that_is_set_back_gives_no_restart_back() -> None:
    status = charged(T0, T0 + 1, T0 + 2)
    assert budgets.used(status, RECOVERY, APPLICATION, at=T0 - 3600) == 3
    status = budgets.with_charge(status, RECOVERY, APPLICATION, at=T0 - 3600)
    assert budgets.used(status, RECOVERY, APPLICATION, at=T0 - 3600) == 4


def test_each_class_has_a_budget_of_its_own() -> None:
    status = charged(T0, T0 + 1, fault_class=FaultClass.HANG)
    status = budgets.with_charge(status, RECOVERY, APPLICATION, at=T0 + 2)
    assert budgets.remaining(status, RECOVERY, at=T0 + 2) == {
        "Application": 2,
        "OutOfMemory": 1,
        "Hang": 1,
    }
    assert budgets.remaining(status, RECOVERY, at=T0 + 500)["Hang"] == 3


def test_what_is_left_never_falls_below_zero() -> None:
    status = charged(T0, T0, T0, T0, T0)
    assert budgets.remaining(status, RECOVERY, at=T0)["Application"] == 0


@pytest.mark.parametrize(
    ("fault_class", "field", "limit"),
    [
        (FaultClass.APPLICATION, "maxRestarts", 3),
        (FaultClass.OUT_OF_MEMORY, "maxOutOfMemoryRestarts", 1),
        (FaultClass.HANG, "maxHangRestarts", 3),
        (FaultClass.INFRASTRUCTURE, "maxInfrastructureRestarts", None),
        (FaultClass.PREEMPTION, None, None),
    ],
)
def test_the_limits_come_from_the_spec(
    fault_class: FaultClass, field: str | None, limit: int | None
) -> None:
    assert budgets.limit_of(RecoverySpec(), fault_class) == limit
    assert budgets.FIELDS.get(fault_class) == field
    if field is not None:
        raised = RecoverySpec.model_validate({field: 7})
        assert budgets.limit_of(raised, fault_class) == 7


def test_restarts_count_what_happened_whether_or_not_there_is_a_limit() -> None:
    assert charged(T0, T0).restarts == 2
    assert charged(T0, fault_class=FaultClass.INFRASTRUCTURE).restarts == 1


def test_many_faults_take_bounded_room_and_are_never_forgotten_early() -> None:
    times = [T0 + step * 0.5 for step in range(150)]
    status = charged(*times)
    (budget,) = status.budgets or []
    assert (budget.used, len(budget.recent)) == (150, budgets.MAX_CHARGES)
    at = T0 + 120
    exact = sum(at - 100 < time for time in times)
    assert budgets.used(status, RECOVERY, APPLICATION, at=at) >= exact
    assert budgets.used(status, RECOVERY, APPLICATION, at=T0 + 300) == 0
