"""Follows one attempt until its first step: when the ranks joined, restored and stepped."""

from __future__ import annotations

import time

from drumline_agent.protocol.membership import Membership
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.incident_log import IncidentLog
from drumline_contract import RestoreTier


class RecoveryTracker:
    """Reads the heartbeats of the leader's own ranks.

    All ranks of a gang pass these stages together, so its own stand for all.

    Args:
        incidents: log of the gang's incidents.
        membership: generation and attempt.
        ranks: ranks of this pod.
        fetched: whether snapshots came from peers.
    """

    def __init__(
        self, incidents: IncidentLog, *, membership: Membership, ranks: range, fetched: bool
    ) -> None:
        self._incidents = incidents
        self._membership = membership
        self._without_heartbeat = set(ranks)
        self._memory_tier = RestoreTier.PEER if fetched else RestoreTier.MEMORY
        self.restored_step: int | None = None
        self.stepped = False
        """A step has been finished in this attempt."""

    def follow(self, heartbeat: Heartbeat) -> None:
        """Take a heartbeat of a local rank."""
        if (heartbeat.generation, heartbeat.attempt) != self._membership or self.stepped:
            return
        now = time.time()
        self._without_heartbeat.discard(heartbeat.rank)
        # All local ranks have joined. They do so together, so they stand for the gang.
        if not self._without_heartbeat:
            self._incidents.update_open(replaced_at=now, joined_at=now)
        # A command without visible steps never reports a restored step.
        if heartbeat.phase is Phase.RUNNING:
            self._count_as_stepped()
            return
        # Position -1 is before the restore: its step is not meaningful yet.
        if self.restored_step is None and heartbeat.position[0] >= 0:
            restored = heartbeat.restored_step
            self.restored_step = heartbeat.step if restored is None else restored
            self._incidents.update_open(
                replaced_at=now,
                joined_at=now,
                restored_at=now,
                restored_step=self.restored_step,
                tier=self._tier(heartbeat.restored_from),
            )
        # A finished step proves that the restored state works.
        if self.restored_step is not None and (
            heartbeat.step > self.restored_step or heartbeat.phase is Phase.DONE
        ):
            self.stepped = True
            self._incidents.complete_open()

    def _count_as_stepped(self) -> None:
        """Complete the recovery of a command without known steps once all its ranks run."""
        if not self._without_heartbeat:
            self.stepped = True
            self._incidents.complete_open()

    def _tier(self, restored_from: RestoreTier | None) -> RestoreTier | None:
        """Refine the tier: a rank cannot distinguish its own snapshot from a peer's."""
        return self._memory_tier if restored_from is RestoreTier.MEMORY else restored_from
