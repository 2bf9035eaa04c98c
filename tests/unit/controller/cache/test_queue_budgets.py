"""What a queue with a budget had: counted once, by day, over deleted jobs and lost leaders."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from drumline.controller.queues.budget_tally import KEPT_USERS
from drumline.controller.queues.budgets import WRITE_SECONDS
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.queuebudget import MAX_USERS
from tests.unit.controller.budget_leader import (
    BUDGET,
    DAY,
    NOON,
    TODAY,
    Leader,
    a_queue,
    ended,
    runs,
)
from tests.unit.controller.views import assignment, job_view


def test_the_status_says_what_an_hour_spends_at_what_is_held() -> None:
    limits = {**BUDGET, "cost": "900", "userGpuHours": 50}
    leader = Leader(a_queue(budget=limits))
    leader.look(NOON, runs(since=NOON), foreign=3)
    leader.look(NOON + 10, runs(since=NOON), foreign=3)
    written = leader.status(NOON + 10)["budget"]
    assert written["gpuSecondsPerHour"] == (4 + 3) * 3600
    assert written["costPerHour"] == "17.50"
    assert written["users"][0]["gpuSecondsPerHour"] == 4 * 3600
    leader.look(NOON + 20, ended(at=NOON + 20, had=80))
    over = leader.status(NOON + 20)["budget"]
    assert {"gpuSecondsPerHour", "costPerHour"} & over.keys() == set()
    assert "gpuSecondsPerHour" not in over["users"][0]


def test_what_a_job_holds_counts_from_look_to_look_and_in_between() -> None:
    leader = Leader()
    job = runs(since=NOON)
    assert leader.look(NOON, job) == {}
    assert leader.spent(NOON + 10) == {0: 40}
    assert leader.look(NOON + 10, job) == {0: 40}
    assert leader.look(NOON + 15, ended(at=NOON + 12, had=48)) == {0: 48}
    assert leader.spent(NOON + 900) == {0: 48}


def test_a_job_that_came_and_ended_between_two_looks_counts() -> None:
    leader = Leader()
    leader.look(NOON, job_view("llama", uid="llama"))
    assert leader.look(NOON + 60, ended(at=NOON + 50, had=40)) == {0: 40}


def test_the_night_is_divided_at_midnight() -> None:
    leader = Leader()
    midnight = (TODAY + 1) * DAY
    leader.look(midnight - 10, runs(since=midnight - 10))
    assert leader.spent(midnight + 20) == {0: 40, 1: 80}
    assert leader.look(midnight + 20, runs(since=midnight - 10)) == {0: 40, 1: 80}


def test_what_was_had_before_the_budget_was_set_does_not_count() -> None:
    leader = Leader(a_queue())
    leader.budgets.observe((), foreign_gpus={}, now=NOON)
    leader.specs.on_object(None, a_queue(budget=BUDGET))
    assert leader.look(NOON + 100, runs(since=NOON, had=7)) == {}
    assert leader.look(NOON + 110, runs(since=NOON, had=7)) == {0: 40}


def test_other_queues_do_not_count_and_a_budget_that_is_set_again_starts_anew() -> None:
    leader = Leader(a_queue(budget=BUDGET), a_queue("other"))
    both = runs(since=NOON), runs("bert", since=NOON, queue="other")
    leader.look(NOON, *both)
    assert leader.look(NOON + 10, *both) == {0: 40}
    leader.specs.on_object(None, a_queue())
    leader.budgets.observe(
        leader.rates.of(leader.jobs.all()), foreign_gpus={("research", "h100"): 9}, now=NOON + 20
    )
    assert leader.budgets.spent(NOON + 20) == {}
    assert leader.status(NOON + 20) == {}
    leader.specs.on_object(None, a_queue(budget=BUDGET))
    assert leader.look(NOON + 30, *both) == {}


def test_a_deleted_job_counts_until_it_is_missed_and_stays_counted() -> None:
    leader, job = Leader(), runs(since=NOON)
    leader.look(NOON, job)
    leader.look(NOON + 10, job)
    assert leader.look(NOON + 15) == {0: 60}
    assert leader.look(NOON + 900) == {0: 60}


def test_foreign_pods_count_from_look_to_look() -> None:
    leader, job = Leader(), runs(since=NOON)
    assert leader.look(NOON, job, foreign=3) == {}
    assert leader.spent(NOON + 10) == {0: 70}
    assert leader.look(NOON + 10, job, foreign=1) == {0: 70}
    assert leader.look(NOON + 20, job) == {0: 120}
    assert leader.look(NOON + 30, job) == {0: 160}


def test_a_job_that_changes_its_queue_pays_what_it_had_where_it_had_it() -> None:
    leader = Leader(a_queue(budget=BUDGET), a_queue("other", budget=BUDGET))
    leader.look(NOON, runs(since=NOON))
    moved = runs(since=NOON + 20, had=40, queue="other")
    assert leader.look(NOON + 25, moved) == {0: 60}
    assert leader.look(NOON + 35, moved) == {0: 60}
    assert leader.budgets.spent(NOON + 35)["other"] == {TODAY: 40}


def test_an_older_account_of_a_job_is_no_use_and_gives_nothing_back() -> None:
    """After a restore from a backup, an account is lower than it was."""
    leader = Leader()
    leader.look(NOON, ended(at=NOON, had=0))
    assert leader.look(NOON + 10, ended(at=NOON, had=100)) == {0: 100}
    assert leader.look(NOON + 20, ended(at=NOON, had=60)) == {0: 100}
    assert leader.look(NOON + 30, ended(at=NOON, had=110)) == {0: 110}


def test_a_new_leader_counts_on_from_the_second_it_was_written() -> None:
    first, job = Leader(), runs(since=NOON, had=1000)
    first.look(NOON, job)
    first.look(NOON + 100, job)
    second = first.after_it(NOON + 100)
    assert second.look(NOON + 160, job) == {0: 640}
    assert second.look(NOON + 170, job) == {0: 680}


def test_the_status_may_be_older_than_the_last_look_of_a_leader() -> None:
    first, job = Leader(), runs(since=NOON)
    first.look(NOON, job)
    written = first.after_it(NOON)
    first.look(NOON + 100, job)
    assert written.look(NOON + 160, job) == {0: 640}


def test_of_an_account_that_was_written_since_then_only_what_follows_is_sure() -> None:
    """Nothing is counted twice: of 400 GPU-seconds some may have been counted by the status."""
    first = Leader()
    first.look(NOON, runs(since=NOON))
    second = first.after_it(NOON)
    restarted = runs(since=NOON + 100, had=400)
    assert second.look(NOON + 110, restarted) == {0: 40}


def test_a_job_that_was_made_since_then_counts_whole() -> None:
    """Created one second after the status was written."""
    created = 1_700_000_000.0  # of `job_view`
    second = Leader(
        statuses={"research": {"budget": {"spentGpuHours": 0, "until": timestamp(created - 1)}}}
    )
    second.look(created + 50, ended(at=created + 40, had=160))
    assert sum(second.spent(created + 50).values()) == 160
    same_second = Leader(
        statuses={"research": {"budget": {"spentGpuHours": 0, "until": timestamp(created)}}}
    )
    same_second.look(created + 50, ended(at=created + 40, had=160))
    assert sum(same_second.spent(created + 50).values()) == 0


@pytest.mark.parametrize(
    "budget",
    [
        None,
        "much",
        {},
        {"until": "once", "spentGpuHours": 1},
        {"until": timestamp(NOON), "spentGpuHours": "many"},
        {
            "until": timestamp(NOON),
            "spentGpuHours": 1,
            "days": [{"day": "2024-13-77", "gpuSeconds": 5}],
        },
    ],
)
def test_a_tally_that_cannot_be_read_is_begun_anew(budget: object) -> None:
    leader = Leader(statuses={"research": {"budget": budget}})
    assert leader.look(NOON, runs(since=NOON - 100)) == {}
    assert leader.look(NOON + 10, runs(since=NOON - 100)) == {0: 40}


def test_the_status_has_a_line_for_each_day_the_oldest_go() -> None:
    leader = Leader()
    for day in range(100):
        at = NOON + DAY * day
        leader.look(at - 1, job_view(f"job-{day}", uid=f"job-{day}"))
        leader.look(at, ended(f"job-{day}", at=at, had=3600))
    status = leader.status(NOON + DAY * 99)["budget"]
    assert len(status["days"]) == 92
    assert status["days"][-1] == {"day": "2025-01-07", "gpuSeconds": 3600}
    assert status["spentGpuHours"] == 30
    assert status["until"] == timestamp(NOON + DAY * 99)


def test_the_status_is_written_rarely_with_all_else_and_when_a_percent_is_spent() -> None:
    leader, job = Leader(), runs(since=NOON)
    leader.look(NOON, job)
    before = leader.status(NOON, changed=False)
    assert before["budget"]["until"] == timestamp(NOON)
    leader.look(NOON + 300, job)
    assert leader.status(NOON + 300, before=before, changed=False) == before
    assert leader.status(NOON + 300, before=before, changed=True) != before
    assert leader.status(NOON + WRITE_SECONDS, before=before, changed=False) != before
    leader.look(NOON + 301, job, ended("big", at=NOON + 301, had=0))
    leader.look(NOON + 302, job, ended("big", at=NOON + 302, had=3600))
    assert leader.status(NOON + 302, before=before, changed=False) != before


def test_a_clock_that_was_set_back_counts_nothing_twice() -> None:
    leader, job = Leader(), runs(since=NOON)
    leader.look(NOON, job)
    leader.look(NOON + 100, job)
    assert leader.look(NOON + 50, job) == {0: 400}
    assert leader.spent(NOON + 90) == {0: 400}
    assert leader.look(NOON + 110, job) == {0: 440}


IN_MONEY = {**BUDGET, "cost": "100"}
BY_USER = {**BUDGET, "userGpuHours": 5}


def cost(leader: Leader, now: float) -> float:
    """Of all days, in the currency of the prices."""
    return sum(leader.budgets.spent_prices(now)["research"].values()) / 3600 / 1_000_000


def test_what_is_had_costs_what_its_pool_costs_then() -> None:
    leader = Leader(a_queue(budget=IN_MONEY))
    job = runs(since=NOON)
    leader.look(NOON, job)
    leader.look(NOON + 3600, job)
    assert cost(leader, NOON + 3600) == 4 * 2.5
    leader.prices["h100"] = 5_000_000
    leader.look(NOON + 3600, job)
    assert cost(leader, NOON + 7200) == 4 * 2.5 + 4 * 5
    leader.look(NOON + 7200, job, foreign=2)
    assert cost(leader, NOON + 10_800) == 4 * 2.5 + 8 * 5 + 2 * 5
    leader.look(NOON + 10_800, ended(at=NOON + 9000, had=36_000))
    assert cost(leader, NOON + 99_999) == 4 * 2.5 + 6 * 5 + 2 * 5


def test_what_a_job_holds_in_two_pools_costs_what_each_does() -> None:
    leader = Leader(a_queue(budget=IN_MONEY))
    leader.prices["spot"] = 900_000
    places = {
        "gpuPool": "h100",
        "nodes": ["a", "b", "c"],
        "surplus": {"gpuPool": "spot", "indices": [1, 2]},
    }
    account = {"until": timestamp(NOON), "starting": 0}
    job = job_view(
        uid="llama",
        nodes=3,
        status={**assignment("a"), "assignment": places, "gpuSeconds": account},
    )
    leader.look(NOON, job)
    assert leader.look(NOON + 3600, job) == {0: 6 * 3600}
    assert cost(leader, NOON + 3600) == 2 * 2.5 + 4 * 0.9


def test_what_has_no_price_costs_nothing_whatever_others_of_its_queue_cost() -> None:
    pools = [{"gpuPool": name, "nominalGpus": 64} for name in ("h100", "dear")]
    leader = Leader(a_queue(budget=IN_MONEY, quotas=pools))
    leader.prices.clear()
    leader.prices["dear"] = 9_000_000
    waits = job_view("unseen", uid="unseen")
    leader.look(NOON, job_view("llama", uid="llama"), waits)
    for hours in (1, 2, 3):
        leader.look(NOON + 3600 * hours, runs(since=NOON), waits)
    llama = ended(at=NOON + 14_000, had=56_000)
    assert leader.look(NOON + 14_400, llama, waits) == {0: 56_000}
    assert cost(leader, NOON + 14_400) == 0
    leader.look(NOON + 14_500, llama, ended("unseen", at=NOON + 14_450, had=3600))
    assert cost(leader, NOON + 14_500) == 9.0, "no look saw where it was"


def test_the_cost_is_in_the_status_and_with_the_next_leader() -> None:
    leader = Leader(a_queue(budget=IN_MONEY))
    leader.look(NOON, runs(since=NOON))
    leader.look(NOON + 3600, runs(since=NOON))
    status = leader.status(NOON + 3600)["budget"]
    assert (status["spentGpuHours"], status["spentCost"]) == (4, "10.00")
    assert status["days"] == [{"day": "2024-09-30", "gpuSeconds": 14_400, "cost": "10.00"}]
    after = leader.after_it(NOON + 3600)
    after.look(NOON + 3600, runs(since=NOON))
    assert cost(after, NOON + 7200) == 20.0


@pytest.mark.parametrize("refill", [None, "Monthly"])
def test_of_users_those_are_kept_who_had_something_that_counts(refill: str | None) -> None:
    """Jobs that only wait, each with another user, fill no memory."""
    monthly = {"gpuHours": 100, "refill": refill, "userGpuHours": 5}
    budget = monthly if refill else BY_USER
    leader = Leader(a_queue(budget=budget))
    waits = [job_view(f"j-{number}", uid=f"j-{number}", user=f"u-{number}") for number in range(9)]
    leader.look(NOON, runs(since=NOON), *waits)
    assert set(leader.budgets.spent_by_user(NOON)["research"]) == {""}
    leader.look(NOON + 60, ended(at=NOON + 60, had=240))
    assert leader.budgets.spent_by_user(NOON + 60)["research"] == {"": {TODAY: 240}}
    for days, kept in ((91, {""}), (93, set[str]())):
        leader.look(NOON + days * DAY)
        assert set(leader.budgets.spent_by_user(NOON + days * DAY)["research"]) == kept, days


def test_a_budget_in_money_alone_is_written_when_a_percent_of_it_is_spent() -> None:
    leader, job = Leader(a_queue(budget={"cost": "10", "windowDays": 30})), runs(since=NOON)
    leader.look(NOON, job)
    before = leader.status(NOON, changed=False)
    leader.look(NOON + 30, job)
    assert leader.status(NOON + 30, before=before, changed=False) == before, "0.08 of 10"
    leader.look(NOON + 60, job)
    after = leader.status(NOON + 60, before=before, changed=False)["budget"]
    assert (after["spentGpuHours"], after["spentCost"]) == (0, "0.166666")


def test_users_are_told_apart_also_by_the_next_leader() -> None:
    leader = Leader(a_queue(budget=BY_USER))
    jobs = [
        job_view(
            name,
            uid=name,
            user=user,
            status={
                **assignment("node-0", "node-1"),
                "gpuSeconds": {"until": timestamp(NOON), "starting": 0},
            },
        )
        for name, user in (("first", "ann"), ("second", "ann"), ("third", "bob"))
    ]
    leader.look(NOON, *jobs)
    leader.look(NOON + 100, *jobs)
    by_user = {"ann": {TODAY: 800}, "bob": {TODAY: 400}}
    assert leader.budgets.spent_by_user(NOON + 100) == {"research": by_user}
    users = leader.status(NOON + 100)["budget"]["users"]
    assert [(entry["user"], entry["days"][0]["gpuSeconds"]) for entry in users] == [
        ("ann", 800),
        ("bob", 400),
    ]
    after = leader.after_it(NOON + 100)
    after.look(NOON + 100, *jobs)
    assert after.budgets.spent_by_user(NOON + 200)["research"]["ann"] == {TODAY: 1600}
    assert "users" not in Leader().status(NOON).get("budget", {})


def had_by(leader: Leader, at: float, **had: int) -> None:
    """A job of each of these users had so many GPU-seconds by then, and is over."""
    jobs = {user: {"name": f"{user}-{at:.0f}", "uid": f"{user}-{at}", "user": user} for user in had}
    leader.look(at - 1, *(job_view(**jobs[user]) for user in had))
    ends = {
        user: {
            "finishedAt": timestamp(at),
            "gpuSeconds": {"until": timestamp(at), "starting": gpu_seconds},
        }
        for user, gpu_seconds in had.items()
    }
    leader.look(at, *(job_view(**jobs[user], status=ends[user]) for user in had))


def all_users(leader: Leader, now: float) -> set[str]:
    return set(leader.budgets.spent_by_user(now)["research"])


def written_users(leader: Leader, now: float) -> list[str]:
    return [entry["user"] for entry in leader.status(now)["budget"]["users"]]


def test_a_user_of_whose_days_none_counts_any_more_is_forgotten() -> None:
    leader = Leader(a_queue(budget=BY_USER))
    had_by(leader, NOON, ann=3600)
    had_by(leader, NOON + DAY, bob=3600)
    leader.look(NOON + 91 * DAY)
    assert all_users(leader, NOON + 91 * DAY) == {"ann", "bob"}
    leader.look(NOON + 92 * DAY, job_view("waits", uid="waits", user="cid"))
    assert all_users(leader, NOON + 92 * DAY) == {"bob"}
    assert written_users(leader, NOON + 92 * DAY) == ["bob"]
    assert list(leader.budgets.spent(NOON + 92 * DAY)["research"]) == [TODAY + 1]


def test_the_users_are_bounded_and_who_had_least_of_what_counts_goes_first() -> None:
    leader = Leader(a_queue(budget=BY_USER))
    had_by(leader, NOON - 40 * DAY, early=10**9)
    had = {f"u{number:03}": 3600 + number for number in range(KEPT_USERS + 50)}
    had_by(leader, NOON, **had)
    kept = set(sorted(had)[50:])
    assert all_users(leader, NOON) == kept
    holds = {
        **assignment("node-0"),
        "gpuSeconds": {"until": timestamp(NOON), "starting": 0},
    }
    leader.look(NOON, job_view("holds", uid="holds", user="holds", status=holds))
    assert all_users(leader, NOON) == {*kept, "holds"}


def test_the_status_names_the_users_with_most_of_what_counts() -> None:
    leader = Leader(a_queue(budget=BY_USER))
    had_by(leader, NOON - 40 * DAY, early=10**9)
    had = {f"u{number:03}": 3600 + number for number in range(MAX_USERS)}
    had_by(leader, NOON, **had)
    assert all_users(leader, NOON) == {*had, "early"}
    assert written_users(leader, NOON) == sorted(had)


def on_parts(at: float, had: int, *, pool: str | None = "mixed", parts: int = 3) -> Any:
    """A job of two pods, each on so many sevenths of a GPU, or that gave them back."""
    places = {} if pool is None else assignment("node-0", "node-1", pool=pool)
    account = {"until": timestamp(at), "starting": had, "parts": parts, "partsPerGpu": 7}
    status = {**places, "gpuSeconds": account}
    return job_view("llama", uid="llama", user="ann", gpusPerNode=1, status=status)


def test_parts_of_gpus_are_charged_as_what_they_are_of_one() -> None:
    leader = Leader(a_queue(budget={**IN_MONEY, "userGpuHours": 5}))
    leader.prices["mixed"] = 7_000_000
    leader.look(NOON, on_parts(NOON, 0))
    assert leader.look(NOON + 700, on_parts(NOON, 0)) == {0: 600}
    assert leader.look(NOON + 701, on_parts(NOON, 0)) == {0: 601}, "6/7 more"
    assert leader.look(NOON + 1400, on_parts(NOON, 0)) == {0: 1200}, "nothing was rounded before"
    assert cost(leader, NOON + 1400) == pytest.approx(1200 / 3600 * 7)
    users = leader.budgets.spent_by_user(NOON + 1400)["research"]
    assert users == {"ann": {TODAY: 1200}}
    written = leader.status(NOON + 1400)["budget"]
    assert written["gpuSecondsPerHour"] == round(6 / 7 * 3600)
    assert written["costPerHour"] == "6.00"
    assert written["days"] == [{"day": "2024-09-30", "gpuSeconds": 1200, "cost": "2.333333"}]


def test_foreign_parts_count_as_what_they_are_of_a_gpu() -> None:
    leader = Leader(a_queue(budget=IN_MONEY))
    leader.budgets.observe((), foreign_gpus={("research", "h100"): Fraction(2, 7)}, now=NOON)
    leader.budgets.observe((), foreign_gpus={}, now=NOON + 3500)
    assert leader.spent(NOON + 3500) == {0: 1000}


def test_a_job_that_comes_back_costs_what_its_pool_costs_then() -> None:
    leader = Leader(a_queue(budget=IN_MONEY))
    leader.look(NOON, runs(since=NOON))
    leader.look(NOON + 3600, job_view("llama", uid="llama", status=account(NOON + 3600, 14_400)))
    leader.prices["h100"] = 5_000_000
    leader.look(NOON + 7200, runs(since=NOON + 3600, had=14_400))
    assert cost(leader, NOON + 7200) == 4 * 2.5 + 4 * 5


def account(until: float, had: int) -> dict[str, Any]:
    return {"gpuSeconds": {"until": timestamp(until), "starting": had}}
