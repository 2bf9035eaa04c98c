"""Which members a drain may evict, of small gangs by the labels of their pods."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed, PodFacts
from drumline.lifecycle.plan.actions import JobPlan, LabelPods, ProtectMembers
from drumline.lifecycle.plan.planner import plan_job
from drumline.lifecycle.plan.protection import protection
from drumline.lifecycle.plan.situation import Situation
from tests.builders import EPOCH, T0, a_job, admitted, ended, observed, ready_pods

GANG = admitted(a_job(nodes=3), nodes=("a", "b", "c"))


def pods(job: Job = GANG, *, released: Collection[int] = ()) -> tuple[PodFacts, ...]:
    return tuple(replace(pod, protected=pod.index not in released) for pod in ready_pods(job))


def situation(*seen: PodFacts, evictable: int | None = None) -> Situation:
    return Situation.of(GANG, observed(*seen, evictable=evictable), now=T0 + 5, epoch=EPOCH)


def test_exactly_the_members_that_may_go_are_released() -> None:
    first, second, third = pods(released=[0])
    assert protection(situation(first, second, third), evictable=[1]) == JobPlan(
        actions=(LabelPods(protect=(first,), release=(second,)),)
    )


@pytest.mark.parametrize("released", [[], [1], [0, 1, 2]])
def test_nothing_is_done_where_the_labels_are_right(released: list[int]) -> None:
    assert protection(situation(*pods(released=released)), evictable=released) is None


def test_no_budget_of_the_jobs_own_is_made() -> None:
    assert protection(situation(*pods(), evictable=None)) is None


def test_a_pod_that_ended_or_leaves_is_left_alone() -> None:
    first, second, third = pods(released=[0, 1])
    over = (replace(first, end=ended()), replace(second, terminating=True), third)
    assert protection(situation(*over)) is None


def test_a_gang_with_pods_of_an_earlier_version_keeps_its_own_budget() -> None:
    old, *new = ready_pods(GANG)
    mixed = (old, *(replace(pod, protected=True) for pod in new))
    assert protection(situation(*mixed), evictable=[1]) == JobPlan(
        actions=(ProtectMembers(evictable=1),)
    )
    assert protection(situation(*mixed, evictable=1), evictable=[1]) is None


@pytest.mark.parametrize(("asks", "action"), [(True, ProtectMembers()), (False, None)])
def test_a_new_leader_asks_for_an_own_budget_only_where_something_is_announced(
    asks: bool, action: ProtectMembers | None
) -> None:
    expected = None if action is None else JobPlan(actions=(action,))
    assert protection(situation(*ready_pods(GANG)), asks=asks) == expected


def test_a_gang_runs_without_a_budget_of_its_own_once_its_pods_are_in_the_namespaces() -> None:
    seen = Observed(pods=pods(), acknowledged_generation=1)
    planned = plan_job(GANG, seen, now=T0 + 5, epoch=EPOCH)
    assert planned.status is not None
    assert planned.status.phase == "Running"


def test_a_member_that_was_released_is_protected_again_before_its_gang_runs() -> None:
    released = pods(released=[2])
    seen = Observed(pods=released, acknowledged_generation=1)
    planned = plan_job(GANG, seen, now=T0 + 5, epoch=EPOCH)
    assert planned == JobPlan(actions=(LabelPods(protect=(released[2],)),))
