"""Views -> the values that are decided on."""

from __future__ import annotations

from drumline.controller.queues.conversion import policy_of, queue_of
from drumline_api.policy import MovesPolicy, PreemptionLimitPolicy, SchedulingPolicy
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.model import (
    Budget,
    MoveBudget,
    Node,
    Ordering,
    Policy,
    PreemptionLimit,
    PreemptionRule,
    PriceRule,
    Queue,
    Reclaim,
    SpotRule,
    WaitingRule,
    WithinQueue,
)
from drumline_scheduler.placement.gpu_counts import GpuCounts
from drumline_scheduler.resources import Resources


def test_a_queue() -> None:
    spec = TrainingQueueSpec.model_validate(
        {
            "quotas": [{"gpuPool": "h100", "nominalGpus": 16}],
            "maxPriority": 100,
            "namespaces": ["team"],
        }
    )
    assert queue_of("research", spec) == Queue(
        name="research",
        nominal={"h100": 16},
        max_priority=100,
        namespaces=frozenset({"team"}),
        borrowing_limit={},
        lending_limit={},
        preemption=PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY),
        user_limit={},
    )


def test_a_queue_of_a_cohort() -> None:
    quota = {"nominalGpus": 16, "borrowingLimitGpus": 8, "lendingLimitGpus": 4}
    quota["userLimitGpus"] = 2
    spec = TrainingQueueSpec.model_validate(
        {
            "parent": "all",
            "quotas": [{"gpuPool": "h100", **quota}, {"gpuPool": "a100", "nominalGpus": 0}],
            "preemption": {"withinQueue": "Never", "reclaim": "FairShare"},
            "minRuntimeSeconds": 60,
            "weight": 3,
            "stopPolicy": "Hold",
            "budget": {"gpuHours": 500, "windowDays": 30},
            "spot": "Avoid",
            "maxPricePerGpuHour": "2.5",
        }
    )
    assert queue_of("research", spec) == Queue(
        name="research",
        nominal={"h100": 16, "a100": 0},
        held=True,
        parent="all",
        borrowing_limit={"h100": 8},
        lending_limit={"h100": 4},
        preemption=PreemptionRule(within_queue=WithinQueue.NEVER, reclaim=Reclaim.FAIR_SHARE),
        min_runtime_seconds=60.0,
        weight=3.0,
        user_limit={"h100": 2},
        budget=Budget(gpu_hours=500, window_days=30),
        price_rule=PriceRule(spot=SpotRule.AVOID, max_price=2_500_000),
    )


def test_a_cost_of_nothing_that_was_stored_is_spent_by_any_use() -> None:
    spec = TrainingQueueSpec.model_validate(
        {
            "quotas": [{"gpuPool": "h100", "nominalGpus": 16}],
            "budget": {"cost": "0.00", "windowDays": 30},
        }
    )
    assert queue_of("research", spec).budget == Budget(cost=1, window_days=30)


def test_the_owner_s_choices() -> None:
    assert policy_of(SchedulingPolicy()) == Policy()
    chosen = SchedulingPolicy(
        waiting="Strict",
        order="FairShare",
        reservations=3,
        history_half_life_seconds=60,
        history_weight=0.5,
        restart_seconds=1,
        priority_seconds=2,
        surplus=True,
        repairs_preempt=True,
        preemption_limit=PreemptionLimitPolicy(times=4, window_seconds=6),
        moves=MovesPolicy(jobs=2, gpu_seconds=5),
        move_back=True,
    )
    assert policy_of(chosen) == Policy(
        waiting=WaitingRule.STRICT,
        order=Ordering.FAIR_SHARE,
        reservations=3,
        history_seconds=60.0,
        history_weight=0.5,
        restart_seconds=1.0,
        priority_seconds=2.0,
        surplus=True,
        repairs_preempt=True,
        preemption_limit=PreemptionLimit(times=4, seconds=6.0),
        moves=MoveBudget(gangs=2, gpu_seconds=5.0),
        move_back=True,
    )


def test_a_quota_in_percent_follows_the_healthy_nodes_of_its_pool() -> None:
    quotas = [
        {"gpuPool": "h100", "nominalGpus": 2, "nominalPercent": 30},
        {"gpuPool": "a100", "nominalGpus": 3},
    ]
    spec = TrainingQueueSpec.model_validate({"quotas": quotas, "aboveQuota": "Evict"})
    nodes = [
        Node(name=f"n{i}", pool="h100", allocatable=Resources(gpus=4), **changes)
        for i, changes in enumerate([{}, {}, {"ready": False}, {"unschedulable": True}])
    ]
    queue = queue_of("research", spec, gpus=GpuCounts.of(nodes))
    assert queue.nominal == {"h100": 2, "a100": 3}  # 30 % of 8 is 2.4
    assert queue.lasting == {"h100": 4, "a100": 3}  # 30 % of 16 is 4.8
    assert queue.evicts_excess
    assert queue_of("research", spec).nominal == {"h100": 2, "a100": 3}
    plain = TrainingQueueSpec.model_validate({"quotas": quotas[1:]})
    assert queue_of("research", plain).lasting_nominal is None


def test_an_override_that_ends_after_the_last_year_can_be_named() -> None:
    """The offset moves the time beyond year 9999, which no text of a condition can hold."""
    override = {
        "job": "team/hero",
        "until": "9999-12-31T23:59:59-23:00",
        "grantedBy": "jane",
        "reason": "launch",
    }
    spec = TrainingQueueSpec.model_validate(
        {"quotas": [{"gpuPool": "h100", "nominalGpus": 16}], "overrides": [override]}
    )
    (granted,) = queue_of("research", spec).overrides
    assert "until 9999-12-31T23:59:59Z" in str(granted)
