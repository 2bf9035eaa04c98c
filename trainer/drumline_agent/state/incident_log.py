"""The log of a gang's incidents, numbered by the membership that each recovery led to.

The leader writes it; every `Go` carries it to all members, so it survives the leader. A recovery
that another fault interrupts is complete when the next one is: both end with the first step after.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.protocol.membership import Membership
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import MAX_CAUSE_CHARS, Incident

KEPT = 32


class IncidentLog:
    """Incidents by membership, oldest first; published in the agent's status."""

    def __init__(self, status: RankStatusStore) -> None:
        self._status = status
        self._incidents: dict[Membership, Incident] = {}

    @property
    def all(self) -> tuple[Incident, ...]:
        """Oldest first."""
        return tuple(self._incidents.values())

    @property
    def open(self) -> tuple[Incident, ...]:
        """Incidents whose recovery is not complete."""
        return tuple(
            incident for incident in self._incidents.values() if incident.first_step_at is None
        )

    def add(self, incident: Incident) -> None:
        """Record an incident."""
        cause = incident.cause[:MAX_CAUSE_CHARS]
        self._put([replace(incident, cause=cause)])

    def by_membership(self, membership: Membership) -> Incident | None:
        """Return the incident whose recovery led to this membership, or would have."""
        return self._incidents.get(membership)

    def merge(self, incidents: Iterable[Incident]) -> None:
        """Take over what another agent knows.

        Of two versions of an incident the complete one counts, with the fuller account of the root
        cause of either.
        """
        news: list[Incident] = []
        for incident in incidents:
            known = self._incidents.get(_number(incident))
            if known is None:
                news.append(incident)
            elif known.first_step_at is None:
                # Agents may know different parts of one incident. The fuller description wins.
                fuller = max(incident, known, key=_detail)
                news.append(_with_root_cause_of(incident, fuller))
        self._put(news)

    def update_open(self, **facts: Any) -> None:
        """Add facts to the open incidents; a time that is known already stays."""
        self._put([_with(incident, facts) for incident in self.open])

    def complete_open(self, **facts: Any) -> None:
        """Complete the open incidents: the first step is finished."""
        closing = [_number(incident) for incident in self.open]
        if not closing:
            return
        self.update_open(first_step_at=time.time(), **facts)
        for number in closing:
            log(AgentEvent.INCIDENT, incident=asdict(self._incidents[number]))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the field `incidents` of `Go`."""
        return [{**asdict(incident), "also": list(incident.also)} for incident in self.all]

    def _put(self, incidents: Iterable[Incident]) -> None:
        whole = self._incidents | {_number(incident): incident for incident in incidents}
        # Bounded: every Go carries the whole log.
        self._incidents = dict(sorted(whole.items())[-KEPT:])
        self._status.incidents = self.all
        self._status.publish()


def _number(incident: Incident) -> Membership:
    return incident.generation, incident.attempt


def _detail(incident: Incident) -> tuple[bool, int, int]:
    """Return a key that orders incidents by how much detail they have about the root cause."""
    return incident.culprit_index is not None, len(incident.fault_classes), len(incident.cause)


def _with_root_cause_of(incident: Incident, source: Incident) -> Incident:
    return replace(
        incident,
        fault_class=source.fault_class,
        also=source.also,
        cause=source.cause,
        culprit_index=source.culprit_index,
        culprit_rank=source.culprit_rank,
    )


def _with(incident: Incident, facts: dict[str, Any]) -> Incident:
    """Add facts to an incident: known times are kept, all other fields are overwritten."""
    news = {
        name: value
        for name, value in facts.items()
        # The first time of a stage counts: later heartbeats repeat it.
        if not name.endswith("_at") or getattr(incident, name) is None
    }
    changed = replace(incident, **news)
    # A recovery that was interrupted before it had restored cannot have lost steps of its own.
    return replace(changed, failed_step=max(changed.failed_step, changed.restored_step))
