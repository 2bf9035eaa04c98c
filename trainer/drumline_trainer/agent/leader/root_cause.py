"""Who is to blame for the end of an attempt, and how it is written down; pure but for its clock.

A rank that dies takes its peers with it: their collectives fail, sometimes before its own exit is
seen. So victims are told from culprits, and of several culprits one stands for all. The others are
named beside it, and each class among them is counted: once for a recovery, as budgets are of
recoveries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drumline_trainer.agent.processes.fault_classification import without_numbers
from drumline_trainer.agent.protocol.leader_orders import Abandon
from drumline_trainer.contract import MAX_CAUSE_CHARS, ExitCode, FaultClass, Incident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumline_trainer.agent.protocol.inventory import Inventory
    from drumline_trainer.agent.protocol.member_reports import Fault
    from drumline_trainer.contract import GenerationRecord

MAX_FURTHER_CHARS = 80
"""Of the cause of each fault but the culprit's."""


def root_cause_of(faults: Sequence[Fault]) -> Fault:
    """Who is to blame: not a victim, if there is anyone else; a hopeless one first."""
    hopeless = (ExitCode.CONFIG, ExitCode.CORRUPT_CHECKPOINT)
    return min(
        faults, key=lambda fault: (fault.exit_code not in hopeless, fault.consequence, fault.at)
    )


def abandon_order(culprit: Fault, *, objection: str) -> Abandon:
    """The gang gives up because of this one."""
    return Abandon(
        generation=culprit.generation,
        attempt=culprit.attempt,
        index=culprit.index,
        rank=culprit.rank,
        exit_code=culprit.exit_code,
        fault_class=culprit.fault_class,
        reason=f"{culprit.cause[:MAX_CAUSE_CHARS]} ({objection})",
    )


def root_causes_by_class(faults: Sequence[Fault]) -> list[Fault]:
    """The culprit, and of each other class that has a cause of its own the first."""
    culprit = root_cause_of(faults)
    firsts = {culprit.fault_class: culprit}
    for fault in sorted(faults, key=lambda fault: fault.at):
        if not fault.consequence:
            firsts.setdefault(fault.fault_class, fault)
    return list(firsts.values())


def incident_of(faults: Sequence[Fault], *, now: float) -> Incident:
    """What led to the next attempt. Ranks that failed alike are one cause."""
    culprit = root_cause_of(faults)
    known = not culprit.consequence
    incident = Incident(
        generation=culprit.generation,
        attempt=culprit.attempt + 1,
        fault_class=culprit.fault_class,
        cause=culprit.cause,
        culprit_index=culprit.index if known else None,
        culprit_rank=culprit.rank if known else None,
        fault_at=min(culprit.at, now),
        detected_at=min(culprit.detected_at, now),
        failed_step=max(fault.step for fault in faults),
    )
    for fault in faults:
        if not fault.consequence:
            incident = with_fault(incident, fault)
    return incident


def with_fault(incident: Incident, fault: Fault) -> Incident:
    """The incident with a fault that was heard of later, or again.

    Where only consequences were known this is the cause.
    """
    incident = replace(incident, failed_step=max(incident.failed_step, fault.step))
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
    words = fault.cause[:MAX_FURTHER_CHARS]
    cause = incident.cause
    if without_numbers(words) not in without_numbers(cause):
        cause = f"{cause[: MAX_CAUSE_CHARS - 2 - len(words)]}; {words}"
    return replace(incident, also=tuple(classes)[1:], cause=cause)


def incident_of_new_generation(
    record: GenerationRecord, inventories: Sequence[Inventory], *, now: float
) -> Incident | None:
    """What led to a new generation, as its members saw it; None if they all are new."""
    survivors = [one for one in inventories if one.previous_generation]
    if not survivors:
        return None
    fresh = [one.index for one in inventories if not one.previous_generation]
    broken = [one.broken for one in survivors if one.broken is not None]
    at = min([now, *(one.at for one in broken)])
    noticed_at = min([now, *(one.noticed_at for one in broken)])
    who = ", ".join(map(str, fresh))
    if not fresh:
        cause = f"the gang goes on with {len(record.members)} members"
    else:
        cause = f"lost member {who}" if broken else f"moved member {who}"
    return Incident(
        generation=record.generation,
        attempt=0,
        fault_class=FaultClass.INFRASTRUCTURE if broken else FaultClass.PREEMPTION,
        cause=cause,
        culprit_index=fresh[0] if fresh else None,
        fault_at=at,
        detected_at=max(at, noticed_at),
        failed_step=max(one.step for one in survivors),
    )
