"""Conditions of GpuPools and TrainingQueues: whether their specs are in effect, and why not.

Ready is true if the operator works with the spec, and false if it waits for another object that the
spec names. Stalled means that only a change of the spec helps. Degraded means that a pool's nodes
offer fewer GPUs than their pods hold: a device plugin is gone, and jobs there may not start again.
Ineffective means that a part of a queue's spec has no effect in this installation. Overriding means
that jobs of a queue may preempt within the guarantee of other queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from drumline.controller.queues.conversion import overrides_of
from drumline.kube.views import ObjectView
from drumline.lifecycle.model.conditions import Statement, next_condition
from drumline.settings import Settings
from drumline_api.conditions import Condition, ConditionType, PlatformReason
from drumline_api.load import ApiError, parse
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.model import Node

SHOWN_NODES = 3
"""Most nodes that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvictions:
    """Pools in which foreign pods that must return borrowed GPUs can be evicted."""

    allowed: bool = False
    """True if the operator has the right to evict pods."""
    guarded_pools: frozenset[str] = frozenset()
    """The pools in which it evicts them."""

    @classmethod
    def of(cls, settings: Settings) -> PodEvictions:
        """Return the values of an installation's settings."""
        return cls(
            allowed=settings.evict_foreign_pods, guarded_pools=frozenset(settings.guarded_pools)
        )


Statements = Mapping[ConditionType, Statement]
_ACCEPTED = Statement(truth="True", reason=PlatformReason.ACCEPTED)


def of_pool(
    *, problem: str | None, nodes: Iterable[Node], overlap: Statement | None = None
) -> Statements:
    """Return the conditions of a GpuPool.

    Args:
        problem: why its spec cannot be read, or None.
        nodes: its nodes.
        overlap: condition about other pools that select the same nodes (`overlap_of`).
    """
    # An overlap is reported with every other condition, because it changes which nodes count.
    beside = {} if overlap is None else {ConditionType.OVERLAPPING: overlap}
    if problem is not None:
        return {**_unreadable(problem), **beside}
    # A node that is not ready may offer no GPUs for a moment. That is not a missing plugin.
    short = [node for node in nodes if node.ready and node.used.gpus > node.allocatable.gpus]
    if not short:
        return {ConditionType.READY: _ACCEPTED, **beside}
    shown = ", ".join(
        f"{node.name} offers {node.allocatable.gpus} GPUs, but its pods hold {node.used.gpus}"
        for node in short[:SHOWN_NODES]
    )
    rest = f" and {len(short) - SHOWN_NODES} more nodes" if len(short) > SHOWN_NODES else ""
    text = f"{shown}{rest}: check the device plugin there; no new gang gets these nodes"
    degraded = Statement(truth="True", reason=PlatformReason.GPUS_MISSING, message=text)
    return {ConditionType.READY: _ACCEPTED, ConditionType.DEGRADED: degraded, **beside}


def of_queue(
    spec: TrainingQueueSpec | None,
    *,
    problem: str | None,
    is_pool: Callable[[str], bool],
    is_queue: Callable[[str], bool],
    evictions: PodEvictions,
    parent_of: Callable[[str], str | None] = lambda _: None,
    is_namespace: Callable[[str], bool] = lambda _: True,
    gpus_of: Callable[[str], int] = lambda _: 0,
    now: float = 0.0,
) -> Statements:
    """Return the conditions of a TrainingQueue.

    Args:
        spec: its newest spec that could be read.
        problem: why its newest spec cannot be read, or None.
        is_pool: returns whether a GpuPool of this name exists.
        is_queue: returns whether a TrainingQueue of this name exists.
        evictions: what this installation does about foreign pods that must leave.
        parent_of: returns the parent of a TrainingQueue, None without one.
        is_namespace: returns whether a namespace exists.
        gpus_of: returns the total `gpus` of a GpuPool; 0 if unknown, or if it may grow.
        now: seconds since the epoch.
    """
    # The first problem decides. Each one names one object to create or one field to change.
    if problem is not None or spec is None:
        return _unreadable(problem or "spec: missing")
    missing = [quota.gpu_pool for quota in spec.quotas if not is_pool(quota.gpu_pool)]
    if missing:
        text = f"quotas name GpuPool {missing[0]!r}, which does not exist; create it or remove it"
        return _waiting(PlatformReason.GPU_POOL_NOT_FOUND, text)
    if spec.parent is not None and not is_queue(spec.parent):
        text = (
            f"parent {spec.parent!r} does not exist: the queue neither borrows nor lends until"
            " it exists"
        )
        return _waiting(PlatformReason.PARENT_NOT_FOUND, text)
    cycle = _cycle_above(spec.parent, parent_of)
    if cycle:
        text = (
            f"the parents form a cycle, {' -> '.join(cycle)}: these queues neither borrow nor lend;"
            " change the parent of one of them"
        )
        return _waiting(PlatformReason.PARENT_CYCLE, text)
    effect = _without_effect(spec, evictions) or _out_of_reach(
        spec, is_namespace=is_namespace, gpus_of=gpus_of
    )
    return {ConditionType.READY: _ACCEPTED, **effect, **_overrides(spec, now=now)}


def _cycle_above(parent: str | None, parent_of: Callable[[str], str | None]) -> list[str]:
    """Return the first cycle of parents at or above a queue, as `a, b, a`; empty without one."""
    path: list[str] = []
    while parent is not None:
        if parent in path:
            return [*path[path.index(parent) :], parent]
        path.append(parent)
        parent = parent_of(parent)
    return []


def _out_of_reach(
    spec: TrainingQueueSpec,
    *,
    is_namespace: Callable[[str], bool],
    gpus_of: Callable[[str], int],
) -> Statements:
    """Report parts of a spec that promise what the cluster does not have."""
    absent = [name for name in spec.namespaces or () if name != "*" and not is_namespace(name)]
    if absent:
        reason = PlatformReason.NAMESPACE_NOT_FOUND
        text = f"namespace {absent[0]!r} does not exist; create it or remove it from namespaces"
        return {ConditionType.INEFFECTIVE: Statement(truth="True", reason=reason, message=text)}
    for quota in spec.quotas:
        whole = gpus_of(quota.gpu_pool)
        if 0 < whole < quota.nominal_gpus:
            text = (
                f"the quota of {quota.nominal_gpus} GPUs is above the {whole} of GpuPool"
                f" {quota.gpu_pool}; lower nominalGpus or add nodes"
            )
            reason = PlatformReason.QUOTA_ABOVE_POOL
            return {ConditionType.INEFFECTIVE: Statement(truth="True", reason=reason, message=text)}
    return {}


def _overrides(spec: TrainingQueueSpec, *, now: float) -> Statements:
    """Report which jobs may preempt within the guarantee of other queues. A change is an event."""
    granted = overrides_of(spec)
    if not granted:
        return {}
    active = [override for override in granted if now < override.until]
    text = "; ".join(f"{override.job}: {override}" for override in active or granted)
    if not active:
        reason = PlatformReason.OVERRIDE_ENDED
        return {ConditionType.OVERRIDING: Statement(truth="False", reason=reason, message=text)}
    reason = PlatformReason.OVERRIDE_GRANTED
    return {ConditionType.OVERRIDING: Statement(truth="True", reason=reason, message=text)}


def _without_effect(spec: TrainingQueueSpec, evictions: PodEvictions) -> Statements:
    if spec.foreign_pods.borrowed != "Evict":
        return {}
    pools = {quota.gpu_pool for quota in spec.quotas}
    if not evictions.allowed:
        reason = PlatformReason.EVICTION_NOT_ALLOWED
        why = "the operator may not evict pods; set the chart's foreignPods.evict"
    elif not pools & evictions.guarded_pools:
        reason = PlatformReason.NO_GUARDED_POOL
        why = "none of its pools is guarded; add them to the chart's guardedPools"
    else:
        return {}
    text = f"foreignPods.borrowed: Evict has no effect: {why}, or use borrowed: Keep"
    return {ConditionType.INEFFECTIVE: Statement(truth="True", reason=reason, message=text)}


def status_fields(view: ObjectView, statements: Statements, *, now: float) -> dict[str, Any]:
    """Return `observedGeneration` and `conditions` for the status of an object.

    Args:
        view: the GpuPool or TrainingQueue.
        statements: truth, reason and message of each condition.
        now: Unix time in seconds.
    """
    # Sorted, so that equal conditions make equal statuses and no write.
    before = _conditions(view.status.get("conditions"))
    conditions = [
        next_condition(before, kind, statements[kind], generation=view.generation, now=now)
        for kind in sorted(statements)
    ]
    return {
        "observedGeneration": view.generation,
        "conditions": [
            entry.model_dump(mode="json", by_alias=True, exclude_none=True) for entry in conditions
        ],
    }


def news_in(view: ObjectView, status: Mapping[str, Any]) -> Iterable[tuple[bool, str, str]]:
    """Return the conditions in a new status that differ from those that the object has.

    Returns:
        For each: whether it is a problem, the reason, and a sentence.
    """
    before = {
        entry.type: (entry.status, entry.reason)
        for entry in _conditions(view.status.get("conditions"))
    }
    news: list[tuple[bool, str, str]] = []
    for entry in _conditions(status.get("conditions")):
        is_good = (entry.type == ConditionType.READY) == (entry.status == "True")
        known = before.get(entry.type)
        if known != (entry.status, entry.reason) and (known is not None or not is_good):
            news.append((not is_good, entry.reason, entry.message or f"{entry.type} again"))
    return news


def _unreadable(problem: str) -> Statements:
    text = f"{problem}; the last readable spec stays in effect"
    reason = PlatformReason.UNREADABLE
    return {
        ConditionType.READY: Statement(truth="False", reason=reason, message=text),
        ConditionType.STALLED: Statement(truth="True", reason=reason, message=text),
    }


def _waiting(reason: PlatformReason, text: str) -> Statements:
    return {ConditionType.READY: Statement(truth="False", reason=reason, message=text)}


def _conditions(raw: object) -> Sequence[Condition]:
    """Return the conditions in a status. Malformed entries are skipped."""
    known: list[Condition] = []
    for entry in cast("list[Any]", raw) if isinstance(raw, list) else []:
        try:
            known.append(parse(Condition, entry, at="condition"))
        except ApiError:
            continue
    return known
