"""A queue whose GPU-hours are spent starts nothing until enough of them flows back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    Blocked,
    BlockReason,
    Budget,
    CycleInput,
    MoveBudget,
    Policy,
    Pool,
    Queue,
    QueueEvictionReason,
    Refill,
    Remedy,
    RemedyKind,
    Snapshot,
    WhenSpent,
    decide,
)
from drumline_scheduler.quota.usage_budgets import spent_percents, window_gpu_seconds
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, budgets, cluster, gang, node, queue, racks, run

DAY = 86_400
HOUR = 3_600
MONDAY = 19_996
"""2024-09-30, counted from the epoch."""
NOON = MONDAY * DAY + DAY / 2.0
TEN_IN_2 = Budget(gpu_hours=10, window_days=2)
RESEARCH = Queue(name="research", nominal={"h100": 100}, budget=TEN_IN_2)
OTHER = Queue(name="other", nominal={"h100": 100})
SPENT = {MONDAY - 1: 4 * HOUR, MONDAY: 7 * HOUR}


def world(
    *,
    days: Mapping[int, int] = SPENT,
    running: tuple[Admitted, ...] = (),
    nodes: int = 2,
    **changes: Any,
) -> Snapshot:
    nodes_ = (node(f"n{number}", "rack") for number in range(nodes))
    queues = (replace(RESEARCH, **changes), OTHER)
    return replace(cluster(*nodes_, queues=queues, running=running), spent={"research": days})


def is_spent(days: Mapping[int, int], *, budget: Budget, now: float) -> bool:
    return bool(budgets(days, budget=budget, now=now).spent)


def percents(days: Mapping[int, int]) -> tuple[int, ...]:
    return spent_percents(days, prices={}, budget=TEN_IN_2, now=NOON)


@pytest.mark.parametrize(
    ("days", "now", "hours"),
    [
        ({}, NOON, 0),
        ({MONDAY - 2: HOUR, MONDAY - 1: 2 * HOUR, MONDAY: 4 * HOUR}, NOON, 6),
        ({MONDAY - 2: HOUR, MONDAY - 1: 2 * HOUR}, MONDAY * DAY - 1.0, 3),
        ({MONDAY - 2: HOUR, MONDAY - 1: 2 * HOUR}, float(MONDAY * DAY), 2),
        ({MONDAY + 1: HOUR}, NOON, 1),  # of a leader whose clock was ahead
    ],
)
def test_the_last_days_count_with_today(days: dict[int, int], now: float, hours: int) -> None:
    assert window_gpu_seconds(days, budget=TEN_IN_2, now=now) == hours * HOUR


def test_a_budget_is_spent_with_its_last_second() -> None:
    almost = {MONDAY: 10 * HOUR - 1}
    assert not is_spent(almost, budget=TEN_IN_2, now=NOON)
    assert percents(almost) == (99,)
    assert is_spent({MONDAY: 10 * HOUR}, budget=TEN_IN_2, now=NOON)
    assert percents({MONDAY: 23 * HOUR}) == (230,)


@pytest.mark.parametrize(
    ("days", "after"),
    [
        ({MONDAY - 1: 4 * HOUR, MONDAY: 7 * HOUR}, 1),
        ({MONDAY - 1: 4 * HOUR, MONDAY: 10 * HOUR}, 2),
        ({MONDAY - 1: 10 * HOUR, MONDAY: 0}, 1),
        ({MONDAY + 5: 11 * HOUR}, 7),
    ],
)
def test_enough_flows_back_at_a_midnight(days: dict[int, int], after: int) -> None:
    at = budgets(days, budget=TEN_IN_2, now=NOON).retry_at
    assert at == (MONDAY + after) * DAY
    assert not is_spent(days, budget=TEN_IN_2, now=at)
    assert is_spent(days, budget=TEN_IN_2, now=at - 1.0)


def test_no_gang_of_a_queue_whose_budget_is_spent_starts_and_others_do() -> None:
    waits, starts = gang("waits"), gang("starts", queue="other", at=1.0)
    decisions = run(world(), waits, starts, now=NOON)
    assert [placed.key for placed in decisions.placed] == ["training/starts"]
    (blocked,) = decisions.blocked
    assert not missing(
        blocked.message, "queue research", "110 %", "10 GPU-hours", "2024-10-01", "budget.gpuHours"
    )
    assert replace(blocked, message="") == Blocked(
        key="training/waits",
        uid="uid-waits",
        reason=BlockReason.BUDGET_SPENT,
        message="",
        remedy=Remedy(kind=RemedyKind.WAIT),
    )
    assert decisions.retry_at == (MONDAY + 1) * DAY
    assert [placed.key for placed in run(world(), waits, now=decisions.retry_at).placed] == [
        "training/waits"
    ]


def test_time_matters_only_while_a_gang_waits_for_it() -> None:
    assert run(world(), gang("starts", queue="other"), now=NOON).retry_at is None
    assert run(world(days={MONDAY: HOUR}), gang("starts"), now=NOON).retry_at is None


def test_a_raised_budget_lets_gangs_start() -> None:
    raised = world(budget=Budget(gpu_hours=12, window_days=2))
    assert run(raised, gang("starts"), now=NOON).placed
    assert run(world(budget=None), gang("starts"), now=NOON).placed


def test_a_budget_is_the_queues_own_in_a_cohort_too() -> None:
    org = queue("org", 0)
    spent = queue("research", 2, parent="org", budget=TEN_IN_2)
    other = queue("other", 2, parent="org", budget=TEN_IN_2)
    snapshot = replace(
        cluster(node("n0"), node("n1"), queues=(org, spent, other)), spent={"research": SPENT}
    )
    borrows = gang("borrows", nodes=2, gpus=2, queue="other")
    decisions = run(snapshot, gang("waits"), borrows, now=NOON)
    assert [placed.key for placed in decisions.placed] == ["training/borrows"]


def test_what_runs_goes_on_and_is_repaired() -> None:
    held = admitted(gang("runs", nodes=2, gpus=2), "n0", "gone", lost=frozenset({1}))
    (placed,) = run(world(running=(held,)), now=NOON).placed
    assert (placed.key, placed.replaced) == ("training/runs", (1,))


def test_an_elastic_gang_does_not_grow() -> None:
    held = admitted(gang("runs", nodes=2, gpus=2, sizes=(1, 2)), "n0")
    assert run(world(running=(held,)), now=NOON).resized == ()
    assert run(world(running=(held,), days={}), now=NOON).resized


def test_a_gang_is_not_preempted_for_by_one_that_may_not_start() -> None:
    victims = tuple(
        admitted(gang(name, gpus=2, queue="other"), place)
        for name, place in (("a", "n0"), ("b", "n1"))
    )
    org = queue("org", 0)
    queues = (
        org,
        queue("research", 4, parent="org", budget=TEN_IN_2),
        queue("other", parent="org"),
    )
    snapshot = replace(world(running=victims), queues=queues)
    wants = gang("wants", gpus=2, priority=5)
    assert run(replace(snapshot, spent={}), wants, now=NOON).preemptions
    assert run(snapshot, wants, now=NOON).preemptions == ()


def test_nodes_that_were_kept_for_one_of_its_gangs_are_free_again() -> None:
    nominee = gang("waits", gpus=2, nominated=("n0",), nominated_pool="h100")
    starts = gang("starts", gpus=2, queue="other", at=1.0)
    decisions = run(world(nodes=1), nominee, starts, now=NOON)
    assert [placed.key for placed in decisions.placed] == ["training/starts"]


def test_a_gang_that_could_not_start_again_is_not_moved() -> None:
    """Two half-used racks: one gang could move beside the other and free a rack."""
    running = tuple(admitted(gang(name), place) for name, place in (("a", "n0"), ("b", "n2")))
    snapshot = cluster(*racks(), queues=(RESEARCH, OTHER), running=running)
    policy = Policy(moves=MoveBudget(gangs=4, gpu_seconds=1e9), restart_seconds=0.0)
    assert decide(CycleInput(snapshot=snapshot, pending=(), policy=policy, now=NOON)).moves
    spent = replace(snapshot, spent={"research": SPENT})
    assert decide(CycleInput(snapshot=spent, pending=(), policy=policy, now=NOON)).moves == ()


def test_the_invariant_names_what_is_given_to_a_queue_whose_budget_is_spent() -> None:
    waits = gang("waits", gpus=2)
    grows = admitted(gang("grows", nodes=2, gpus=2, sizes=(1, 2)), "n0")
    free = world(days={}, running=(grows,), nodes=3)
    spent = replace(free, spent={"research": SPENT})
    decisions = run(free, waits, now=NOON)
    assert decisions.placed
    complaint = "though the budget of queue research is spent"
    assert violations(snapshot=spent, pending=(waits,), decisions=decisions, now=NOON) == (
        f"training/waits starts {complaint}",
        f"training/grows grows {complaint}",
    )
    tomorrow = NOON + DAY
    assert violations(snapshot=spent, pending=(waits,), decisions=decisions, now=tomorrow) == ()


WEEKLY = Budget(gpu_hours=10, refill=Refill.WEEKLY)
MONTHLY = Budget(gpu_hours=10, refill=Refill.MONTHLY)


def at_noon(day: int) -> float:
    return day * DAY + DAY / 2.0


@pytest.mark.parametrize(
    ("days", "today", "hours"),
    [
        ({MONDAY - 1: 9, MONDAY: 2, MONDAY + 6: 3}, MONDAY + 6, 5),
        ({MONDAY - 7: 4, MONDAY - 1: 9, MONDAY: 2}, MONDAY, 5),  # 3 beyond the week before
        ({MONDAY - 7: 35, MONDAY: 2}, MONDAY, 12),  # a whole budget at most
        ({MONDAY - 14: 35, MONDAY: 2}, MONDAY, 2),  # the week before has paid for it
        ({MONDAY - 14: 35, MONDAY - 7: 8, MONDAY: 2}, MONDAY, 2),
        ({MONDAY + 20: 4}, MONDAY, 4),  # of a leader whose clock was ahead
        ({}, MONDAY, 0),
    ],
)
def test_a_week_begins_on_monday_and_pays_for_what_the_one_before_overdrew(
    days: dict[int, int], today: int, hours: int
) -> None:
    had = {day: each * HOUR for day, each in days.items()}
    assert window_gpu_seconds(had, budget=WEEKLY, now=at_noon(today)) == hours * HOUR


@pytest.mark.parametrize(
    ("day", "first"),
    [
        ("2024-02-29", "2024-03-01"),
        ("2024-12-31", "2025-01-01"),
        ("2025-02-01", "2025-03-01"),
        ("2023-11-30", "2023-12-01"),
    ],
)
def test_a_month_ends_with_its_last_day(day: str, first: str) -> None:
    today = date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    days = {today: 10 * HOUR}
    back = budgets(days, budget=MONTHLY, now=at_noon(today)).retry_at
    assert back is not None
    assert datetime.fromtimestamp(back, UTC).date().isoformat() == first
    assert is_spent(days, budget=MONTHLY, now=back - 1)
    assert not is_spent(days, budget=MONTHLY, now=back)


def test_credit_is_had_before_the_refill_and_taken_from_it() -> None:
    budget = replace(WEEKLY, credit_gpu_hours=5)
    days = {MONDAY: 14 * HOUR}
    assert not is_spent(days, budget=budget, now=at_noon(MONDAY))
    assert is_spent(days, budget=WEEKLY, now=at_noon(MONDAY))
    assert is_spent({MONDAY: 15 * HOUR}, budget=budget, now=at_noon(MONDAY))
    assert window_gpu_seconds(days, budget=budget, now=at_noon(MONDAY + 7)) == 4 * HOUR
    unpaid = {MONDAY: 14 * HOUR, MONDAY + 7: 9 * HOUR}
    assert window_gpu_seconds(unpaid, budget=budget, now=at_noon(MONDAY + 14)) == 3 * HOUR


@pytest.mark.parametrize(("hours", "weeks"), [(10, 1), (19, 1), (20, 2), (1000, 2)])
def test_a_week_takes_from_the_next_and_from_no_other(hours: int, weeks: int) -> None:
    spent = world(days={MONDAY: hours * HOUR}, budget=WEEKLY)
    assert run(spent, gang("waits"), now=NOON).retry_at == (MONDAY + 7 * weeks) * DAY


@pytest.mark.parametrize("before", [{"gpu_hours": 60}, {"refill": None, "window_days": 90}])
def test_nobody_leaves_for_what_was_had_weeks_ago_when_the_budget_changes(
    before: dict[str, Any],
) -> None:
    """50 a week for a quarter, 8 in the last: within 60 a week, and within 700 in 90 days."""
    weekly = replace(WEEKLY, when_spent=WhenSpent.EXPIRE)
    quarter = {MONDAY - 7 * week: 50 * HOUR for week in range(2, 13)}
    days = {**quarter, MONDAY - 7: 8 * HOUR, MONDAY: 3 * HOUR}
    known = replace(weekly, **{"gpu_hours": 700, **before})
    for budget in (known, weekly):
        snapshot = world(days=days, budget=budget, running=(RUNS,))
        assert run(snapshot, now=NOON).evictions == ()


class CountedDays(Mapping[int, int]):
    """Days that count how often any of them is read."""

    def __init__(self, days: Mapping[int, int]) -> None:
        self._days = days
        self.reads = 0

    def __getitem__(self, day: int) -> int:
        self.reads += 1
        return self._days[day]

    def __iter__(self) -> Iterator[int]:
        for day in self._days:
            self.reads += 1
            yield day

    def __len__(self) -> int:
        return len(self._days)


@pytest.mark.parametrize("budget", [WEEKLY, MONTHLY, Budget(gpu_hours=10, window_days=92)], ids=str)
def test_a_budget_is_overrun_a_millionfold_and_its_days_are_read_a_few_times(
    budget: Budget,
) -> None:
    days = CountedDays({MONDAY - ago: 10_000_000 * HOUR for ago in range(92)})
    assert run(world(days=days, budget=budget), gang("waits"), now=NOON).retry_at is not None
    assert days.reads <= 20 * len(days)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_days": 1, "refill": Refill.WEEKLY},
        {},
        {"window_days": 1, "credit_gpu_hours": 1},
        {"gpu_hours": None, "cost": 1, "refill": Refill.WEEKLY, "credit_gpu_hours": 1},
    ],
)
def test_a_time_is_a_window_or_a_refill_and_credit_needs_that(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"refill"):
        Budget(**{"gpu_hours": 1, **wrong})


def test_a_warning_keeps_nothing_from_anybody_and_is_said_with_the_start() -> None:
    warns = world(budget=replace(TEN_IN_2, when_spent=WhenSpent.WARN))
    starts = gang("starts")
    decisions = run(warns, starts, now=NOON)
    (placed,) = decisions.placed
    assert not missing(placed.message, "queue research", "110 %", "10 GPU-hours", "2 days")
    assert decisions.evictions == ()
    assert violations(snapshot=warns, pending=[starts], decisions=decisions, now=NOON) == ()


EXPIRES = replace(TEN_IN_2, when_spent=WhenSpent.EXPIRE)
RUNS = admitted(gang("runs", gpus=2), "n0")


def test_what_runs_leaves_with_an_expired_budget_and_nothing_starts() -> None:
    snapshot, waits = world(budget=EXPIRES, running=(RUNS,)), gang("waits")
    decisions = run(snapshot, waits, now=NOON)
    (eviction,) = decisions.evictions
    assert (eviction.key, eviction.why) == ("training/runs", QueueEvictionReason.BUDGET_SPENT)
    assert not missing(
        eviction.message,
        "queue research",
        "110 %",
        "10 GPU-hours",
        "2 days",
        "2024-10-01",
        "UTC",
        "budget.gpuHours",
    )
    assert [blocked.reason for blocked in decisions.blocked] == [BlockReason.BUDGET_SPENT]
    assert violations(snapshot=snapshot, pending=[waits], decisions=decisions, now=NOON) == ()
    leaves = replace(RUNS, leaving=True, departs=True)
    raised = world(budget=replace(EXPIRES, gpu_hours=12), running=(leaves,))
    assert run(raised, now=NOON).stay == (RUNS.gang.uid,)


PRICE = 3_333_333
BOUNDS = {"gpu_hours": {"gpu_hours": 10}, "user_gpu_hours": {"user_gpu_hours": 10}}
BOUNDS |= {"cost": {"cost": 10 * PRICE}}


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("gpus", [1, 2, 7])
@pytest.mark.parametrize("time", [{"window_days": 2}, {"refill": Refill.WEEKLY}], ids=str)
@pytest.mark.parametrize("bound", BOUNDS)
def test_an_expired_budget_is_overrun_by_one_cycle_at_most(
    bound: str, time: dict[str, Any], gpus: int, parts: int
) -> None:
    """Nothing wakes the scheduler but the clock; what is held is charged second by second."""
    budget = Budget(when_spent=WhenSpent.EXPIRE, **BOUNDS[bound], **time)
    runs = admitted(gang("runs", gpus=gpus), "n0")
    had, start = 9 * HOUR + 100, int(NOON)
    snapshot = replace(world(budget=budget, running=(runs,)), nodes=(node("n0", gpus=gpus),))
    priced = replace(snapshot.pools[0], price=PRICE, parts_per_gpu=parts)
    snapshot = replace(snapshot, pools=(priced, *snapshot.pools[1:]))
    now, cycles = NOON, 0
    while True:
        held = had + Fraction(gpus * (int(now) - start), parts)
        decisions = run(
            replace(
                snapshot,
                spent={"research": {MONDAY: int(held)}},
                spent_prices={"research": {MONDAY: int(held * PRICE)}},
                spent_by_user={"research": {runs.gang.user: {MONDAY: int(held)}}},
            ),
            now=now,
        )
        cycles += 1
        if decisions.evictions:
            break
        assert decisions.retry_at is not None
        now = max(decisions.retry_at, now + 0.05)  # as the loop does
    overrun = held - 10 * HOUR
    assert 0 <= overrun <= Fraction(gpus, parts), "a second, as the tally counts whole ones"
    assert cycles <= 25


def test_a_queue_that_holds_nothing_is_not_looked_at_for_its_budget() -> None:
    assert run(world(days={}, budget=EXPIRES), now=NOON).retry_at is None
    far = world(days={}, budget=replace(EXPIRES, gpu_hours=10_000), running=(RUNS,))
    assert run(far, now=NOON).retry_at == (MONDAY + 1) * DAY


def test_what_is_spent_in_money_is_said_so_whatever_is_left_of_the_hours() -> None:
    budget = replace(TEN_IN_2, cost=25_000_000)
    costs = replace(
        world(days={}, budget=budget), spent_prices={"research": {MONDAY: 90_000_000_000}}
    )
    (blocked,) = run(costs, gang("waits"), now=NOON).blocked
    assert blocked.reason is BlockReason.BUDGET_SPENT
    assert not missing(blocked.message, "queue research", "100 %", "25.00", "2 days")
    assert not missing(blocked.message, "budget.cost")
    cheaper = replace(costs, spent_prices={"research": {MONDAY: 89_999_999_999}})
    assert run(cheaper, gang("starts"), now=NOON).placed


@pytest.mark.parametrize("time", [{"window_days": 30}, {"refill": Refill.WEEKLY}])
def test_a_budget_in_money_alone_lets_any_number_of_hours_be_had(time: dict[str, Any]) -> None:
    budget = Budget(cost=25_000_000, **time)
    had = world(days={MONDAY - 8: 3 * HOUR, MONDAY: 4 * HOUR}, budget=budget)
    starts = gang("starts")
    decisions = run(had, starts, now=NOON)
    assert decisions.placed
    assert violations(snapshot=had, pending=[starts], decisions=decisions, now=NOON) == ()
    hours = window_gpu_seconds(had.spent["research"], budget=budget, now=NOON) / HOUR
    assert hours == (7 if budget.refill is None else 4), "nothing is beyond what has no bound"
    dear = replace(had, spent_prices={"research": {MONDAY: 90_000_000_000}})
    (blocked,) = run(dear, gang("waits"), now=NOON).blocked
    assert "of its budget of 25.00" in blocked.message
    days = {"prices": {MONDAY: 45_000_000_000}, "budget": budget, "now": NOON}
    assert spent_percents({MONDAY: 4 * HOUR}, **days) == (50,)


def test_a_user_who_had_their_part_waits_and_others_start() -> None:
    budget = replace(TEN_IN_2, gpu_hours=1000, user_gpu_hours=4)
    snapshot = replace(
        world(days={}, budget=budget),
        spent_by_user={"research": {"ann": {MONDAY: 4 * HOUR}, "bob": {MONDAY: HOUR}}},
    )
    ann, bob = gang("of-ann", user="ann"), gang("of-bob", user="bob", at=1.0)
    new = gang("of-cid", user="cid", at=2.0)
    decisions = run(snapshot, ann, bob, new, now=NOON)
    assert [placed.key for placed in decisions.placed] == ["training/of-bob", "training/of-cid"]
    (blocked,) = decisions.blocked
    assert not missing(blocked.message, "'ann'", "queue research", "100 %", "4 GPU-hours", "2 days")
    asked = {"snapshot": snapshot, "pending": [ann, bob, new], "now": NOON}
    assert violations(decisions=decisions, **asked) == ()
    runs = tuple(admitted(gang(f"runs-{user}", user=user), "n0") for user in ("ann", "bob"))
    expires = replace(
        snapshot, queues=(replace(RESEARCH, budget=replace(budget, when_spent=WhenSpent.EXPIRE)),)
    )
    evictions = run(replace(expires, admitted=runs), now=NOON).evictions
    assert [eviction.key for eviction in evictions] == ["training/runs-ann"]


@pytest.mark.parametrize(
    "bound", [{"cost": 0}, {"user_gpu_hours": 0}, {"gpu_hours": 0}, {"gpu_hours": None}]
)
def test_a_bound_lets_something_be_had(bound: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        replace(TEN_IN_2, **bound)


def test_an_expired_budget_in_money_is_overrun_by_one_cycle_at_most() -> None:
    """3 GPUs at 2.50 an hour: the last 0.01 are spent in 4.8 s."""
    budget = replace(EXPIRES, gpu_hours=1000, cost=25_000_000)
    runs = admitted(gang("runs", gpus=3), "n0")
    snapshot = replace(
        world(days={}, budget=budget, running=(runs,)),
        pools=(Pool(name="h100", price=2_500_000),),
    )
    had, now = 24_990_000 * HOUR, NOON
    while True:
        priced = had + 3 * 2_500_000 * int(now - NOON)
        decisions = run(replace(snapshot, spent_prices={"research": {MONDAY: priced}}), now=now)
        if decisions.evictions:
            break
        assert decisions.retry_at is not None
        now = max(decisions.retry_at, now + 0.05)
    assert now - NOON == pytest.approx(4.8, abs=1)
    assert priced - 25_000_000 * HOUR < 3 * 2_500_000
