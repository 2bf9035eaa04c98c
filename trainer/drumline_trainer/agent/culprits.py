"""Who is to blame for the end of an attempt, and how it is written down; pure but for its clock.

A rank that dies takes its peers with it: their collectives fail, sometimes before its own exit is
seen. So victims are told from culprits, and of several culprits one stands for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drumline_trainer.agent.faults import core_of
from drumline_trainer.agent.gang_words import Abandon
from drumline_trainer.contract import MAX_CAUSE_CHARS, ExitCode, FaultClass, Incident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drumline_trainer.agent.gang_words import Inventory
    from drumline_trainer.agent.reports import Fault
    from drumline_trainer.contract import GenerationRecord


def culprit_of(faults: Sequence[Fault]) -> Fault:
    """Who is to blame: not a victim, if there is anyone else; a hopeless one first."""
    hopeless = (ExitCode.CONFIG, ExitCode.CORRUPT_CHECKPOINT)
    return min(
        faults, key=lambda fault: (fault.exit_code not in hopeless, fault.consequence, fault.at)
    )


def abandoned(culprit: Fault, *, objection: str) -> Abandon:
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


def incident_of(faults: Sequence[Fault], culprit: Fault, *, now: float) -> Incident:
    """What led to the next attempt. Ranks that failed alike are one cause."""
    causes = {core_of(culprit.cause): culprit.cause}
    for fault in faults:
        if not fault.consequence:
            causes.setdefault(core_of(fault.cause), fault.cause)
    return Incident(
        generation=culprit.generation,
        attempt=culprit.attempt + 1,
        fault_class=culprit.fault_class,
        cause="; ".join(causes.values()),
        culprit_index=culprit.index,
        culprit_rank=culprit.rank,
        fault_at=min(culprit.at, now),
        detected_at=min(culprit.detected_at, now),
        failed_step=max(fault.step for fault in faults),
    )


def replacement_of(
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
