"""The root cause of a failed attempt, and the incident that is recorded; pure.

A rank that dies takes its peers with it: their collectives fail, sometimes before its own exit is
seen. So consequences are distinguished from causes, and of several causes one is the root cause.
The others are named beside it, and each fault class among them is counted once per recovery, as
budgets are of recoveries. Example:

    rank 3: lost its peers (consequence)   at 10.00
    rank 1: ValueError (Application)       at 10.02   <- root cause
    rank 2: killed for memory              at 10.05   <- second class: `also`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drumline_agent.leader.restart_policy import NEVER_RESTARTED, without_numbers
from drumline_agent.protocol.inventory import Inventory
from drumline_agent.protocol.leader_orders import Abandon
from drumline_agent.protocol.member_reports import Fault
from drumline_contract import MAX_CAUSE_CHARS, FaultClass, GenerationRecord, Incident

MAX_FURTHER_CHARS = 80
"""Maximum length of the cause of each fault but the root cause."""


def root_cause_of(faults: Sequence[Fault]) -> Fault:
    """Return the earliest fault, preferring faults that no restart can help, then causes."""
    return min(
        faults,
        key=lambda fault: (fault.exit_code not in NEVER_RESTARTED, fault.consequence, fault.at),
    )


def abandon_order(fault: Fault, *, objection: str) -> Abandon:
    """Build the order to give up because of this fault."""
    return Abandon(
        generation=fault.generation,
        attempt=fault.attempt,
        index=fault.index,
        rank=fault.rank,
        exit_code=fault.exit_code,
        fault_class=fault.fault_class,
        reason=f"{fault.cause[:MAX_CAUSE_CHARS]} ({objection})",
    )


def root_causes_by_class(faults: Sequence[Fault]) -> list[Fault]:
    """Return the root cause, and the first cause of each other fault class."""
    root = root_cause_of(faults)
    firsts = {root.fault_class: root}
    for fault in sorted(faults, key=lambda fault: fault.at):
        if not fault.consequence:
            firsts.setdefault(fault.fault_class, fault)
    return list(firsts.values())


def incident_of(faults: Sequence[Fault], *, now: float) -> Incident:
    """Build the incident that leads to the next attempt. Equal failures of ranks are one cause."""
    root = root_cause_of(faults)
    # A mere consequence has no culprit: the cause may be a lost pod that reports nothing.
    known = not root.consequence
    incident = Incident(
        generation=root.generation,
        attempt=root.attempt + 1,
        fault_class=root.fault_class,
        cause=root.cause,
        culprit_index=root.index if known else None,
        culprit_rank=root.rank if known else None,
        # Clocks of pods differ slightly. No stage of a recovery may last less than zero.
        fault_at=min(root.at, now),
        detected_at=min(root.detected_at, now),
        failed_step=max(fault.step for fault in faults),
    )
    for fault in faults:
        if not fault.consequence:
            incident = with_fault(incident, fault)
    return incident


def with_fault(incident: Incident, fault: Fault) -> Incident:
    """Add a fault to the incident that was reported later, or again.

    If only consequences were known, this fault becomes the root cause.
    """
    incident = replace(incident, failed_step=max(incident.failed_step, fault.step))
    # Only consequences were known, and here is their cause.
    if incident.culprit_index is None:
        return replace(
            incident,
            fault_class=fault.fault_class,
            cause=fault.cause,
            culprit_index=fault.index,
            culprit_rank=fault.rank,
            fault_at=min(incident.fault_at, fault.at),
        )
    classes = dict.fromkeys((*incident.fault_classes, fault.fault_class))
    further = fault.cause[:MAX_FURTHER_CHARS]
    cause = incident.cause
    # Ranks that fail alike differ only in numbers. Naming them once is enough.
    if without_numbers(further) not in without_numbers(cause):
        cause = f"{cause[: MAX_CAUSE_CHARS - 2 - len(further)]}; {further}"
    return replace(incident, also=tuple(classes)[1:], cause=cause)


def with_finished_steps(incident: Incident, inventories: Sequence[Inventory]) -> Incident:
    """Update the incident with the finished steps that members report once their ranks are at rest.

    A rank that stops sends its withheld reports. Under NCCL no rank stops earlier, so the faults
    have seen fewer steps.
    """
    finished = max((inventory.step for inventory in inventories), default=0)
    return replace(incident, failed_step=max(incident.failed_step, finished))


def incident_of_new_generation(
    record: GenerationRecord, inventories: Sequence[Inventory], *, now: float
) -> Incident | None:
    """Build the incident that led to a new generation, as its members saw it. None: all are new.

    Args:
        record: the record of the new generation.
        inventories: ranks and faults of each member.
        now: Unix time in seconds.
    """
    survivors = [inventory for inventory in inventories if inventory.previous_generation]
    if not survivors:
        return None
    # A new pod answers without a previous generation.
    fresh = [inventory.index for inventory in inventories if not inventory.previous_generation]
    failures = [inventory.broken for inventory in survivors if inventory.broken is not None]
    # The failure began when the first survivor noticed something, not when the operator acted.
    at = min([now, *(failure.at for failure in failures)])
    noticed_at = min([now, *(failure.noticed_at for failure in failures)])
    indices = ", ".join(map(str, fresh))
    if not fresh:
        cause = f"the gang goes on with {len(record.members)} members"
    else:
        cause = f"lost member {indices}" if failures else f"moved member {indices}"
    return Incident(
        generation=record.generation,
        attempt=0,
        fault_class=FaultClass.INFRASTRUCTURE if failures else FaultClass.PREEMPTION,
        cause=cause,
        culprit_index=fresh[0] if fresh else None,
        fault_at=at,
        detected_at=max(at, noticed_at),
        failed_step=max(inventory.step for inventory in survivors),
    )
