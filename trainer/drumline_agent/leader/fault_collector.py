"""Collects the reported faults of a membership until the root cause is among them.

consequence            wait up to SUSPECT_SECONDS for its cause
cause                  wait SETTLE_SECONDS for faults that belong to the same event
of an older membership it joins the incident that the recovery is from
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.leader.restart_account import RestartAccount
from drumline_agent.leader.root_cause import incident_of, with_fault
from drumline_agent.protocol.member_reports import Fault
from drumline_agent.protocol.membership import Membership
from drumline_agent.state.incident_log import IncidentLog

SETTLE_SECONDS = 0.08
"""Faults within this time are one event: two ranks of a node, say."""
SUSPECT_SECONDS = 2.0
"""Time to wait for a cause while only its consequences are known."""


class FaultCollector:
    """The queue of reported faults of one generation."""

    def __init__(self, *, incidents: IncidentLog, restarts: RestartAccount) -> None:
        self._incidents = incidents
        self._restarts = restarts
        self._faults: asyncio.Queue[Fault] = asyncio.Queue()

    def report(self, fault: Fault) -> None:
        """Report a fault of any membership, of this pod or another."""
        self._faults.put_nowait(fault)

    async def collect(self, membership: Membership) -> list[Fault]:
        """Wait for the faults that end this membership."""
        faults = [await self._next(membership)]
        # 1. Consequences (a lost peer) arrive first when the pod with the cause is slow to report.
        try:
            async with asyncio.timeout(SUSPECT_SECONDS):
                while all(fault.consequence for fault in faults):
                    faults.append(await self._next(membership))
        except TimeoutError:
            return faults
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while True:
                    faults.append(await self._next(membership))
        except TimeoutError:
            return faults

    async def _next(self, membership: Membership) -> Fault:
        while True:
            fault = await self._faults.get()
            if fault.membership == membership:
                if not fault.consequence:
                    log(AgentEvent.FAULT, **asdict(fault))
                return fault
            # A late cause of an earlier attempt: its restart has begun, so only its record changes.
            if fault.membership < membership and not fault.consequence:
                fatal = self._join_incident(fault)
                # No budget is left for this class: give up in the present attempt.
                if fatal:
                    generation, attempt = membership
                    return replace(fault, generation=generation, attempt=attempt)

    def _join_incident(self, fault: Fault) -> bool:
        """Add a fault of an older membership to the incident that it belongs to.

        Returns:
            True if the gang must give up after this fault.
        """
        # Incidents carry the number of the attempt that the recovery leads to.
        number = (fault.generation, fault.attempt + 1)
        known = self._incidents.by_membership(number)
        if known is not None and known.first_step_at is not None:
            return False  # reported again
        counted = known.fault_classes if known is not None else ()
        joined = (
            incident_of([fault], now=time.time()) if known is None else with_fault(known, fault)
        )
        if joined == known:
            return False
        log(AgentEvent.FAULT, **asdict(fault))
        # One restart covers all faults of a class, so only a new class uses up budget.
        if fault.fault_class not in counted:
            if self._restarts.objection(fault) is not None:
                return True
            self._restarts.count([fault.fault_class])
        self._incidents.add(joined)
        return False
