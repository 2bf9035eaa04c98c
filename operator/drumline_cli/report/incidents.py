"""Incidents, restart budgets and GPU-seconds of a report, from the ledger in the job's status."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from drumline_api.conditions import Phase
from drumline_api.incidents import BudgetStatus, GpuSeconds, IncidentStatus
from drumline_api.trainingjob import RecoverySpec, TrainingJobStatus
from drumline_cli.formatting import duration, moment
from drumline_cli.report.model import (
    GpuSecondsLoss,
    GpuSecondsShare,
    IncidentReport,
    RecoveryStage,
    RestartBudget,
)
from drumline_contract import FaultClass, RestoreTier, plain

# The order is the order of time. Each stage begins at the end of the one before it.
_STAGES: Final = (
    ("Detect", "detect_milliseconds", "until the fault was noticed"),
    ("Decide", "decide_milliseconds", "until the new membership was decided"),
    ("Replace", "replace_milliseconds", "until the missing processes or pods were ready"),
    ("Rendezvous", "rendezvous_milliseconds", "until all ranks had completed the rendezvous"),
    ("Restore", "restore_milliseconds", "until their state was restored"),
    ("First step", "first_step_milliseconds", "until the first new optimizer step was done"),
)
_MEASURED_WITHOUT_STEPS: Final = 3
"""Stages that end before the first step. The others need a program whose steps are known."""
_TIERS: Final[Mapping[RestoreTier, str]] = {
    RestoreTier.MEMORY: "from snapshots in the memory of the pods that took them",
    RestoreTier.PEER: "from snapshots, at least one of them in the memory of another node",
    RestoreTier.STORAGE: "from the newest verified checkpoint on storage",
    RestoreTier.INITIAL: "from the initial weights, because nothing was saved yet",
}
_BUDGETS: Final = (
    (FaultClass.APPLICATION, "max_restarts"),
    (FaultClass.OUT_OF_MEMORY, "max_out_of_memory_restarts"),
    (FaultClass.HANG, "max_hang_restarts"),
    (FaultClass.INFRASTRUCTURE, "max_infrastructure_restarts"),
)
"""Classes that are charged, and the field of spec.recovery that limits each."""
_STATES: Final = (
    ("Productive", "productive"),
    ("Starting", "starting"),
    ("Recovering", "recovering"),
    ("Repeated", "repeated"),
)


def incidents_of(status: TrainingJobStatus, *, now: float) -> tuple[IncidentReport, ...]:
    """Return all recorded incidents, newest first."""
    # The status keeps the newest incident apart from the earlier ones.
    last = status.last_incident
    if last is None:
        return ()
    ended = moment(status.finished_at)
    # A job that stands still is in its recovery, which lasts until now.
    stands_still = status.phase not in {Phase.RUNNING, Phase.SUCCEEDED}
    until = (ended or now) if stands_still else None
    # the job's end, or the next incident, ends an incident whose end nobody reported
    earlier = (
        _incident(incident, until=None, over=True) for incident in status.earlier_incidents or []
    )
    return (_incident(last, until=until, over=ended is not None), *earlier)


def budgets_of(
    status: TrainingJobStatus, recovery: RecoverySpec, *, now: float
) -> tuple[RestartBudget, ...]:
    # A class without charges also has a budget, so all classes are listed.
    """Return the budgets of all fault classes, with or without charges.

    Args:
        status: status of the job.
        recovery: limits and window.
        now: Unix time in seconds.
    """
    charged = {budget.fault_class: budget for budget in status.budgets or []}
    return tuple(
        _budget(
            fault_class,
            charged.get(fault_class),
            allowed=getattr(recovery, limit),
            window_seconds=recovery.budget_window_seconds,
            # Phase 1: weigh the fault classes by their time and their repeated steps.
            now=now,
        )
        for fault_class, limit in _BUDGETS
    )


def gpu_second_shares(held: GpuSeconds | None) -> tuple[GpuSecondsShare, ...]:
    """GPU-seconds by state, as shares of all; none while the job has held no GPU."""
    seconds = {name: getattr(held, field) for name, field in _STATES} if held else {}
    # In a pool with partitions, the ledger counts parts of a GPU.
    in_gpus = 1 if held is None or held.share == 1 else float(held.share)
    whole = sum(seconds.values())
    return tuple(
        GpuSecondsShare(
            state=name,
            gpu_seconds=part * in_gpus,
            share=part / whole,
            productive=name == "Productive",
        )
        for name, part in seconds.items()
        if part
    )


def losses_by_cause(
    shares: Sequence[GpuSecondsShare], incidents: Sequence[IncidentReport]
) -> tuple[GpuSecondsLoss, ...]:
    """Return the cost of recoveries and repeated steps by fault class, largest first."""
    took: dict[str, float] = defaultdict(float)
    lost: dict[str, float] = defaultdict(float)
    for incident in incidents:
        took[incident.fault_class] += incident.seconds
        lost[incident.fault_class] += incident.lost_steps or 0
    # Phase 2: distribute each lost state by its own weights.
    weights = {"Recovering": took, "Repeated": lost}
    losses = [
        GpuSecondsLoss(state=share.state, fault_class=fault_class, gpu_seconds=part)
        for share in shares
        if share.state in weights
        for fault_class, part in _divided(round(share.gpu_seconds), weights[share.state]).items()
    ]
    # Sorted for stable output: by cost, and then by name.
    return tuple(sorted(losses, key=lambda loss: (-loss.gpu_seconds, loss.fault_class)))


def _divided(whole: int, weights: Mapping[str, float]) -> Mapping[str, int]:
    """Return a whole in proportion to weights. The last part takes what rounding leaves."""
    heavy = {name: weight for name, weight in weights.items() if weight > 0}
    # Incidents that are no longer on record caused these losses.
    if not heavy:
        return {"earlier": whole}
    parts: dict[str, int] = {}
    passed, given = 0.0, 0
    for name, weight in heavy.items():
        passed += weight
        # Rounding the running sum keeps the total exact.
        until = round(whole * passed / sum(heavy.values()))
        parts[name], given = until - given, until
    return {name: part for name, part in parts.items() if part}


def _incident(incident: IncidentStatus, *, until: float | None, over: bool) -> IncidentReport:
    at = moment(incident.fault_at) or 0.0
    repeated = ""
    # Repeated faults without progress share one record.
    if incident.repeats > 1:
        repeated = f" (fault {incident.repeats} in a row without a new step between them)"
    return IncidentReport(
        number=f"{incident.generation}.{incident.attempt}",
        fault_class=incident.fault_class,
        cause=plain(incident.cause) + repeated,
        root_cause=_root_cause(incident),
        node=plain(incident.node or ""),
        detection=_detection(incident),
        at=at,
        stages=tuple(_stages(incident, at=at, until=until)),
        # An over incident has its first step, or the job has ended since.
        over=over or incident.first_step_milliseconds is not None,
        failed_step=incident.failed_step,
        restored_step=incident.restored_step,
        lost_steps=incident.steps_lost,
        tier="" if incident.tier is None else _TIERS[incident.tier],
    )


def _stages(incident: IncidentStatus, *, at: float, until: float | None) -> Iterator[RecoveryStage]:
    # A missing length ends the list of known stages.
    lengths: list[int | None] = [getattr(incident, field) for _, field, _ in _STAGES]
    if incident.first_step_milliseconds is not None and incident.restored_step is None:
        # a command whose steps are unknown: its recovery counts as over when the ranks run
        lengths, until = [*lengths[:_MEASURED_WITHOUT_STEPS], None, None, None], None
    over = 1 + max((n for n, length in enumerate(lengths) if length is not None), default=-1)
    for (name, _, meaning), length in zip(_STAGES[:over], lengths[:over], strict=True):
        if length is not None:
            yield RecoveryStage(name=name, begins_at=at, milliseconds=length, meaning=meaning)
            at += length / 1000
    # The current stage has no length yet, so it is measured until now.
    if over < len(_STAGES) and until is not None and until > at:
        name, _, meaning = _STAGES[over]
        waited = round((until - at) * 1000)
        yield RecoveryStage(
            name=name, begins_at=at, milliseconds=waited, meaning=meaning, under_way=True
        )


def _root_cause(incident: IncidentStatus) -> str:
    rank = None if incident.rank is None else f"rank {incident.rank}"
    pod = None if incident.pod is None else f"pod {plain(incident.pod)}"
    # A pod that was deleted has only an index.
    if pod is None and incident.index is not None:
        pod = f"pod index {incident.index}"
    member = " in ".join(filter(None, (rank, pod)))
    node = f"on {plain(incident.node)}" if incident.node else ""
    return " ".join(filter(None, (member, node)))


def _detection(incident: IncidentStatus) -> str:
    # Older records have no time of detection.
    if incident.detect_milliseconds is None:
        return ""
    if incident.fault_class is FaultClass.PREEMPTION:
        return "it was announced"
    if not incident.detect_milliseconds:
        return "at once"
    after = duration(incident.detect_milliseconds / 1000)
    match incident.fault_class:
        case FaultClass.HANG:
            return (
                f"after {after}, in which it sent no heartbeat while the other ranks waited for it"
            )
        case FaultClass.INFRASTRUCTURE:
            return f"{after} after its last heartbeat"
        case _:
            return f"{after} after the fault"


def _budget(
    fault_class: FaultClass,
    charged: BudgetStatus | None,
    *,
    allowed: int | None,
    window_seconds: int,
    now: float,
) -> RestartBudget:
    counted = [
        (at, charge.count)
        for charge in (charged.recent if charged else [])
        if (at := moment(charge.at)) is not None and at > now - window_seconds
        # Only charges within the window count. Older ones are only part of the total.
    ]
    return RestartBudget(
        fault_class=fault_class,
        used=sum(number for _, number in counted),
        allowed=allowed,
        total=charged.used if charged else 0,
        # The oldest charge leaves the window first.
        next_back_at=min(at for at, _ in counted) + window_seconds if counted else None,
    )
