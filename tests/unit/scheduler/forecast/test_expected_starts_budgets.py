"""A forecast knows budgets: what runs spends them, and what was had flows back at a midnight."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from drumline_scheduler import Admitted, Budget, Policy, Queue, Snapshot, WhenSpent
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.cluster import LEAVING_SECONDS
from drumline_scheduler.forecast.expected_starts import expected_starts
from tests.unit.scheduler.builders import admitted, cluster, gang, node

DAY = 86_400
HOUR = 3_600
TODAY = 19_996
NOON = TODAY * DAY + DAY / 2.0
RESEARCH = Queue(
    name="research",
    nominal={"h100": 100},
    budget=Budget(gpu_hours=48, window_days=2),
)


def world(*running: Admitted, hours: dict[int, int], nodes: int = 2) -> Snapshot:
    places = (node(f"n{number}", "rack") for number in range(nodes))
    snapshot = cluster(*places, queues=(RESEARCH,), running=running)
    return replace(
        snapshot, spent={"research": {TODAY + day: n * HOUR for day, n in hours.items()}}
    )


def start_in_days(snapshot: Snapshot) -> float | None:
    """The median start of a gang that waits, in days from today's beginning."""
    (start,) = expected_starts(
        CycleInput(snapshot=snapshot, pending=(gang("waits", gpus=2),), policy=Policy(), now=NOON),
        samples=3,
    )
    return None if start.p50_at is None else start.p50_at / DAY - TODAY


def runs(*, hours: float) -> Admitted:
    """A gang that ends after so long: its program says so."""
    return admitted(gang("runs", gpus=2), "n0", admitted_at=NOON, ends_at=NOON + HOUR * hours)


def test_where_nothing_runs_it_starts_once_enough_has_flowed_back() -> None:
    assert start_in_days(world(hours={-1: 10, 0: 40})) == 1.0
    assert start_in_days(world(hours={-1: 10, 0: 48})) == 2.0


def test_where_budget_is_left_it_starts_now() -> None:
    assert start_in_days(world(hours={-1: 10, 0: 37})) == 0.5


def test_what_runs_spends_what_would_have_flowed_back() -> None:
    """40 of today and 2 GPUs for twelve hours: 64 tomorrow, and what tomorrow adds after that."""
    busy = world(runs(hours=100), hours={-1: 10, 0: 40})
    assert start_in_days(world(hours={-1: 10, 0: 40})) == 1.0
    assert start_in_days(busy) > 4.0


def test_a_budget_that_will_be_spent_by_then_is_spent() -> None:
    """Its GPUs are free in the evening, but the gang that leaves them has spent the budget."""
    full = world(runs(hours=6), hours={0: 47}, nodes=1)
    assert start_in_days(full) == 2.0
    assert start_in_days(world(runs(hours=6), hours={0: 30}, nodes=1)) < 1.0


def test_parts_of_gpus_spend_what_they_are_of_one() -> None:
    """41 hours of today are had; two GPUs make them 53 by the evening, and halves of GPUs 47."""
    full = world(runs(hours=6), hours={0: 41}, nodes=1)
    assert start_in_days(full) == 2.0
    halves = tuple(replace(pool, parts_per_gpu=2) for pool in full.pools)
    assert start_in_days(replace(full, pools=halves)) < 1.0


def test_money_is_spent_by_what_runs() -> None:
    dear = replace(RESEARCH, budget=Budget(cost=48_000_000, window_days=2))
    full = world(runs(hours=6), hours={0: 0}, nodes=1)
    spent = {"research": {TODAY: 41 * HOUR * 1_000_000}}
    full = replace(full, queues=(dear,), spent_prices=spent)
    pools = tuple(replace(pool, price=1_000_000) for pool in full.pools)
    assert start_in_days(replace(full, pools=pools)) == 2.0
    assert start_in_days(full) < 1.0, "what has no price costs nothing"


def test_foreign_pods_spend_as_well() -> None:
    pod = admitted(gang("pod", gpus=1), "n0", admitted_at=NOON, is_residual=True, is_foreign=True)
    assert start_in_days(world(hours={-1: 10, 0: 40})) == 1.0
    assert start_in_days(world(pod, hours={-1: 10, 0: 40})) == 2.0


def test_what_is_held_after_midnight_is_the_next_days() -> None:
    """At six in the morning its GPUs are free, and twelve hours of the new day are spent."""
    daily = replace(RESEARCH, budget=Budget(gpu_hours=10, window_days=1))
    full = world(runs(hours=18), hours={}, nodes=1)
    assert start_in_days(replace(full, queues=(daily,))) == 2.0


def test_what_was_told_to_leave_and_need_not_holds_its_places_to_its_end() -> None:
    """Its queue was drained, and is open again before it has saved."""
    leaves = replace(runs(hours=6), leaving=True, departs=True)
    drained = replace(RESEARCH, held=True, drained=True)
    waits = {"pending": (gang("waits", gpus=2, queue="other"),), "policy": Policy(), "now": NOON}
    for queue, seconds in ((RESEARCH, 6 * HOUR), (drained, LEAVING_SECONDS)):
        queues = (queue, Queue(name="other", nominal={"h100": 100}))
        full = replace(world(leaves, hours={}, nodes=1), queues=queues)
        (start,) = expected_starts(CycleInput(snapshot=full, **waits), samples=1)
        assert start.p50_at is not None
        assert start.p50_at - NOON == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({"held": True, "drained": True}, 0.0),
        ({"budget": replace(RESEARCH.budget, when_spent=WhenSpent.EXPIRE)}, 1.0),
    ],
)
def test_what_its_own_queue_has_leave_is_gone_and_comes_back(
    changes: dict[str, Any], hours: float
) -> None:
    """It leaves at once, or when the two GPU-hours that are left are had; another queue waits."""
    held = admitted(gang("runs", gpus=2, max_runtime_seconds=1000 * HOUR), "n0", admitted_at=NOON)
    full = world(held, hours={0: 46}, nodes=1)
    queues = (replace(RESEARCH, **changes), Queue(name="other", nominal={"h100": 100}))
    waits = gang("waits", gpus=2, queue="other", max_runtime_seconds=HOUR)
    behind = gang("behind", gpus=2, at=1.0)
    starts = expected_starts(
        CycleInput(
            snapshot=replace(full, queues=queues),
            pending=(waits, behind),
            policy=Policy(),
            now=NOON,
        ),
        samples=3,
    )
    at = {start.key: start.p50_at for start in starts}
    assert at["training/waits"] == NOON + hours * HOUR + LEAVING_SECONDS
    assert (at.get("training/behind") or inf) > NOON + 7 * DAY, "what has left comes back before it"
