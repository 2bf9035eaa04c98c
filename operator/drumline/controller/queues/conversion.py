"""Convert queues and the scheduling policy of the API to the scheduler's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.money import amount, millionths
from drumline_api.policy import SchedulingPolicy
from drumline_api.trainingjob import TrainingJobSpec
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.model import (
    Budget,
    MoveBudget,
    Ordering,
    Override,
    Policy,
    PreemptionLimit,
    PreemptionRule,
    PriceRule,
    Queue,
    Reclaim,
    Refill,
    SpotRule,
    WaitingRule,
    WhenSpent,
    WithinQueue,
)
from drumline_scheduler.placement.gpu_counts import GpuCounts

_NO_GPUS: Final = GpuCounts()


def queue_of(
    name: str,
    spec: TrainingQueueSpec,
    *,
    selected: frozenset[str] = frozenset(),
    gpus: GpuCounts = _NO_GPUS,
) -> Queue:
    """Convert a TrainingQueue to the scheduler's value.

    Args:
        name: name of the queue.
        spec: its spec.
        selected: namespaces that its selector matches.
        gpus: GPUs of the pools, of which quotas may be a percentage.
    """
    # Limits that the spec leaves out are absent from the mappings: no limit.
    quotas = spec.quotas
    return Queue(
        name=name,
        nominal=nominal_of(spec, gpus.healthy),
        max_priority=spec.max_priority,
        namespaces=None if spec.is_open_to_all else selected.union(spec.namespaces or ()),
        namespace_labels=str(spec.namespace_selector or ""),
        held=spec.stop_policy != "None",
        drained=spec.stop_policy == "HoldAndDrain",
        evicts_excess=spec.above_quota == "Evict",
        lasting_nominal=nominal_of(spec, gpus.all) if has_percentage(spec) else None,
        parent=spec.parent,
        borrowing_limit={
            quota.gpu_pool: quota.borrowing_limit_gpus
            for quota in quotas
            if quota.borrowing_limit_gpus is not None
        },
        lending_limit={
            quota.gpu_pool: quota.lending_limit_gpus
            for quota in quotas
            if quota.lending_limit_gpus is not None
        },
        preemption=PreemptionRule(
            within_queue=WithinQueue(spec.preemption.within_queue),
            reclaim=Reclaim(spec.preemption.reclaim),
        ),
        min_runtime_seconds=float(spec.min_runtime_seconds),
        weight=float(spec.weight),
        user_limit={
            quota.gpu_pool: quota.user_limit_gpus
            for quota in quotas
            if quota.user_limit_gpus is not None
        },
        budget=budget_of(spec),
        price_rule=price_rule_of(spec),
        overrides=overrides_of(spec),
    )


def overrides_of(spec: TrainingQueueSpec) -> tuple[Override, ...]:
    """Return the jobs that may preempt within the guarantee of other queues."""
    return tuple(
        Override(
            job=each.job,
            until=parse_timestamp(each.until),
            granted_by=each.granted_by,
            reason=each.reason,
        )
        for each in spec.overrides or ()
    )


def has_percentage(spec: TrainingQueueSpec) -> bool:
    """Return whether a quota of the queue follows the GPUs of its pool."""
    return any(quota.nominal_percent is not None for quota in spec.quotas)


def nominal_of(spec: TrainingQueueSpec, gpus: Mapping[str, int]) -> dict[str, int]:
    """Return the nominal quota by pool.

    Args:
        spec: spec of the queue.
        gpus: GPUs by pool, for quotas in percent.
    """
    return {
        quota.gpu_pool: max(
            quota.nominal_gpus, (quota.nominal_percent or 0) * gpus.get(quota.gpu_pool, 0) // 100
        )
        for quota in spec.quotas
    }


def price_rule_of(spec: TrainingQueueSpec | TrainingJobSpec) -> PriceRule:
    """Return the rule for the pools that a queue or job accepts by capacity type and price."""
    price = spec.max_price_per_gpu_hour
    return PriceRule(
        spot=None if spec.spot is None else SpotRule(spec.spot),
        max_price=None if price is None else millionths(price),
    )


def budget_of(spec: TrainingQueueSpec) -> Budget | None:
    """Return the budget of a TrainingQueue, or None if it has none.

    A cost of 0 may have been stored before the API rejected it. It becomes the smallest cost, which
    any use exceeds.
    """
    budget = spec.budget
    if budget is None:
        return None
    return Budget(
        gpu_hours=budget.gpu_hours,
        window_days=budget.window_days or 0,
        refill=None if budget.refill is None else Refill(budget.refill),
        credit_gpu_hours=budget.credit_gpu_hours or 0,
        when_spent=WhenSpent(budget.when_spent),
        cost=None if budget.cost is None else max(1, amount(budget.cost)),
        user_gpu_hours=budget.user_gpu_hours,
    )


def policy_of(policy: SchedulingPolicy) -> Policy:
    """Convert the administrator's scheduling policy to the scheduler's value."""
    moves, limit = policy.moves, policy.preemption_limit
    return Policy(
        waiting=WaitingRule(policy.waiting),
        restart_seconds=policy.restart_seconds,
        priority_seconds=policy.priority_seconds,
        order=Ordering(policy.order),
        history_weight=policy.history_weight,
        history_seconds=policy.history_half_life_seconds,
        reservations=policy.reservations,
        surplus=policy.surplus,
        repairs_preempt=policy.repairs_preempt,
        overdue_seconds=policy.overdue_seconds,
        preemption_delay_seconds=policy.preemption_delay_seconds,
        preemption_limit=None
        if limit is None
        else PreemptionLimit(times=limit.times, seconds=limit.window_seconds),
        moves=None
        if moves is None
        else MoveBudget(gangs=moves.jobs, gpu_seconds=moves.gpu_seconds),
        move_back=policy.move_back,
    )
