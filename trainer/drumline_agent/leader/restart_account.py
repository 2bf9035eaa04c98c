"""Restarts in place of the gang in this generation, and the limits on them."""

from __future__ import annotations

from collections.abc import Iterable

from drumline_agent.leader.restart_policy import RestartHistory, objection_to_restart
from drumline_agent.protocol.member_reports import Fault
from drumline_agent.state.incident_log import IncidentLog
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import FaultClass, GenerationRecord


class RestartAccount:
    """Counts restarts by fault class against the budgets of a record.

    Args:
        record: the generation record, with the budgets.
        incidents: log of the gang's incidents.
        status: status of this pod's ranks.
    """

    def __init__(
        self, record: GenerationRecord, *, incidents: IncidentLog, status: RankStatusStore
    ) -> None:
        self._record = record
        self._incidents = incidents
        self._status = status
        self._restarts: dict[FaultClass, int] = {}
        self._stuck_attempts = 0

    def end_attempt(self, *, stepped: bool) -> None:
        """Count a failed attempt; `stepped`: it had finished a step."""
        self._stuck_attempts = 0 if stepped else self._stuck_attempts + 1

    def objection(self, fault: Fault) -> str | None:
        """Return why the gang cannot be restarted in place after this fault, or None if it can."""
        history = RestartHistory(
            incidents=self._incidents.all,
            restarts_left=self._record.restarts_left,
            restarts=self._restarts,
            stuck_attempts=self._stuck_attempts,
        )
        return objection_to_restart(fault, history)

    def count(self, fault_classes: Iterable[FaultClass]) -> None:
        """Charge a restart to each of these classes."""
        for fault_class in fault_classes:
            # The agent's status counts over its whole life, this account for one generation.
            for counts in (self._restarts, self._status.restarts):
                counts[fault_class] = counts.get(fault_class, 0) + 1
