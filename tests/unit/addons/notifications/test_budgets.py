"""A queue's budget of which four fifths are spent: one message each time that it comes there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from drumline.kube.codec import Undecodable
from drumline.kube.store import Change, Event
from drumline_addons.notifications.budgets import (
    NotifiableQueue,
    budget_change,
    notifiable_queue,
    user_change,
)
from drumline_addons.notifications.events import NewsKind
from drumline_addons.notifications.messages import cloud_event, details, headline
from tests.texts import missing
from tests.unit.addons.notifications.jobs import at, time
from tests.unit.addons.notifications.test_notifier import Office


def a_queue(
    spent: int | None, *, of: int | None = 1000, until: str = "10:00:00", uid: str = "q-1"
) -> NotifiableQueue:
    raw: dict[str, Any] = {
        "metadata": {"name": "nlp", "uid": uid, "resourceVersion": "7"},
        "spec": {"quotas": []},
    }
    if of is not None:
        raw["spec"]["budget"] = {"gpuHours": of, "windowDays": 30}
    if spent is not None:
        budget = {"spentGpuHours": spent, "until": time(until), "days": []}
        raw["status"] = {"budget": budget}
    return notifiable_queue(json.dumps(raw).encode())


def in_money(spent: str | None) -> NotifiableQueue:
    """A queue whose budget is money alone."""
    use = {"spentGpuHours": 900, "until": time("10:00:00"), "days": []}
    raw = {
        "metadata": {"name": "nlp", "uid": "q-1", "resourceVersion": "7"},
        "spec": {"quotas": [], "budget": {"cost": "500", "refill": "Monthly"}},
        "status": {"budget": use if spent is None else {**use, "spentCost": spent}},
    }
    return notifiable_queue(json.dumps(raw).encode())


def seen(queue: NotifiableQueue, change: Change = Change.MODIFIED) -> Event[NotifiableQueue]:
    return Event(change=change, view=queue, previous=queue)


@pytest.mark.parametrize(
    ("queue", "is_low"),
    [
        (a_queue(799), False),
        (a_queue(800), True),
        (a_queue(1500), True),
        (a_queue(None), False),
        (a_queue(900, of=None), False),
        (in_money("399.99"), False),
        (in_money("400.00"), True),
        (in_money(None), False),
        (in_money("much"), False),
    ],
)
def test_four_fifths_are_low(queue: NotifiableQueue, is_low: bool) -> None:
    assert queue.is_low is is_low


def test_what_is_no_queue_is_left_out() -> None:
    with pytest.raises(Undecodable):
        notifiable_queue(b'{"metadata": {"name": 7}}')


def test_the_message_has_the_figures_and_is_the_same_all_day() -> None:
    change = budget_change(a_queue(812), now=at("11:00:00"))
    assert not missing(headline(change), "queue nlp")
    assert not missing(details(change)[0], "812 of 1,000 GPU-hours", "30 days", "81%")
    assert details(change)[-1] == "More: drumline queue nlp"
    event = json.loads(cloud_event(change, source="/east"))
    assert (event["type"], event["subject"]) == ("dev.drumline.trainingqueue.budget", "queue/nlp")
    assert event["time"] == time("11:00:00")
    assert {"before", "namespace"}.isdisjoint(event["data"])
    later = budget_change(a_queue(990, until="20:00:00"), now=at("20:00:00"))
    assert later.id == change.id
    assert budget_change(a_queue(1620, of=2000), now=at("20:00:00")).id != change.id


def test_the_message_says_the_bound_of_which_most_is_spent() -> None:
    change = budget_change(in_money("450.50"), now=at("11:00:00"))
    assert not missing(details(change)[0], "450.50 of 500.00", "90%")
    both = structs.replace(in_money("100"), gpu_hours=1000)
    assert both.is_low
    assert "900 of 1,000 GPU-hours" in details(budget_change(both, now=at("11:00:00")))[0]


async def test_each_time_that_it_comes_there_is_one_message_also_over_restarts() -> None:
    office = Office()
    office.open()
    office.notifier.on_queue_event(seen(a_queue(700), Change.ADDED))
    await office.settle()
    for spent in (790, 805, 870):
        office.notifier.on_queue_event(seen(a_queue(spent)))
        await office.settle()
    said = ("all", "nlp", str(NewsKind.BUDGET))
    assert office.sent == [said]
    office.open()
    office.notifier.on_queue_event(seen(a_queue(900), Change.ADDED))
    await office.settle()
    assert office.sent == [said]
    for spent in (600, 811):
        office.notifier.on_queue_event(seen(a_queue(spent, until="23:00:00")))
        await office.settle()
    assert office.sent == [said, said]


async def test_a_budget_that_is_lowered_is_said_though_it_was_counted_long_ago() -> None:
    office = Office()
    office.open()
    office.notifier.on_queue_event(seen(a_queue(700), Change.ADDED))
    await office.settle()
    office.now = at("10:00:00") + 86_400
    office.notifier.on_queue_event(seen(a_queue(700, of=800)))
    await office.settle()
    assert office.sent == [("all", "nlp", str(NewsKind.BUDGET))]


async def test_a_first_start_says_nothing_of_what_was_spent_before() -> None:
    office = Office()
    office.open()
    office.notifier.on_queue_event(seen(a_queue(900), Change.ADDED))
    await office.settle()
    assert office.sent == []


async def test_a_queue_that_is_made_anew_is_another_one() -> None:
    office = Office()
    office.open()
    await office.settle()
    office.now = at("10:00:30")
    office.notifier.on_queue_event(seen(a_queue(900), Change.ADDED))
    await office.settle()
    office.notifier.on_queue_event(seen(a_queue(900), Change.DELETED))
    office.notifier.on_queue_event(seen(a_queue(850, uid="q-2"), Change.ADDED))
    await office.settle()
    assert len(office.sent) == 2


def with_users(
    hours: dict[str, int], *, of: int = 50, when_spent: str = "Refuse", **budget: Any
) -> NotifiableQueue:
    """A queue whose budget bounds each user alone; users have had so many GPU-hours, today."""
    today = time("10:00:00")[:10]
    users = [
        {"user": user, "days": [{"day": today, "gpuSeconds": 3600 * had}]}
        for user, had in hours.items()
    ]
    bound = {"userGpuHours": of, "windowDays": 30, "whenSpent": when_spent, **budget}
    use = {"spentGpuHours": 0, "until": time("10:00:00"), "users": users}
    raw = {
        "metadata": {"name": "nlp", "uid": "q-1", "resourceVersion": "7"},
        "spec": {"quotas": [], "budget": bound},
        "status": {"budget": use},
    }
    return notifiable_queue(json.dumps(raw).encode())


def test_four_fifths_of_a_user_s_part_are_low_and_the_queue_is_not() -> None:
    queue = with_users({"ann": 40, "bob": 39, "": 60})
    assert (queue.is_low, [each.user for each in queue.low_users]) == (False, ["ann", ""])
    assert set(queue.low) == {"q-1/ann", "q-1/"}
    of_january = {"user": "ann", "days": [{"day": "2020-01-01", "gpuSeconds": 10**6}]}
    old = json.dumps(
        {
            "metadata": {"name": "nlp", "uid": "q-1"},
            "spec": {"budget": {"userGpuHours": 50, "windowDays": 30}},
            "status": {"budget": {"until": time("10:00:00"), "users": [of_january]}},
        }
    )
    assert notifiable_queue(old.encode()).low_users == ()
    with pytest.raises(Undecodable):
        notifiable_queue(old.replace('"2020-01-01"', "7").encode())


@pytest.mark.parametrize(
    ("when_spent", "then"),
    [
        ("Refuse", "none of their pending jobs starts. Their running jobs continue"),
        ("Warn", "its jobs still start and continue"),
        ("Expire", "running jobs save and wait"),
    ],
)
def test_the_message_about_a_user_says_who_and_of_what(when_spent: str, then: str) -> None:
    queue = with_users({"ann": 45, "": 60}, when_spent=when_spent)
    ann, without_user = (user_change(queue, each, now=at("11:00:00")) for each in queue.low_users)
    assert not missing(headline(ann), "user ann", "queue nlp")
    said = details(ann)[0]
    assert not missing(said, "45 of 50 GPU-hours", "30 days", "90%")
    assert then in said
    event = json.loads(cloud_event(ann, source="/east"))
    assert (event["type"], event["subject"]) == ("dev.drumline.trainingqueue.budget", "queue/nlp")
    assert event["data"]["user"] == "ann"
    assert not missing(headline(without_user), "queue nlp")
    assert ann.id != without_user.id


async def test_each_user_is_said_each_time_also_over_restarts() -> None:
    office = Office()
    office.open()
    office.notifier.on_queue_event(seen(with_users({"ann": 10, "bob": 45}), Change.ADDED))
    await office.settle()
    assert office.sent == []
    for hours in (39, 41, 46):
        office.notifier.on_queue_event(seen(with_users({"ann": hours, "bob": 45})))
        await office.settle()
    said = ("all", "nlp", str(NewsKind.BUDGET))
    assert office.sent == [said]
    office.open()
    office.notifier.on_queue_event(seen(with_users({"ann": 49, "bob": 45}), Change.ADDED))
    await office.settle()
    assert office.sent == [said]
    for hours in (20, 44):
        office.notifier.on_queue_event(seen(with_users({"ann": hours, "bob": 45})))
        await office.settle()
    assert office.sent == [said, said]


async def test_many_users_of_a_queue_that_come_there_at_once_are_all_said() -> None:
    office = Office()
    office.open()
    hours = {f"user-{i}": 45 for i in range(64)}
    office.notifier.on_queue_event(seen(with_users(hours, of=1000), Change.ADDED))
    await office.settle()
    office.notifier.on_queue_event(seen(with_users(hours)))
    await office.settle()
    assert len(office.sent) == 64
