"""Agree, in each rank, on the step at which all ranks save (see `wire`).

A boundary is one call of `should_save`. Two threads meet here. The training thread asks at its
boundaries. The connection's thread passes the agent's messages. One lock excludes answers and
acceptances from each other, so an accepted step cannot have been passed.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Final

from drumline_client.wire import (
    ClientMessage,
    ProposalAccepted,
    ProposalPassed,
    SaveAgreed,
    SaveProposal,
    SaveWithdrawn,
)

HOLD_SECONDS: Final = 30.0
"""Seconds for which a rank waits at its boundary for the outcome of an accepted proposal."""


class BoundaryAnswer(Enum):
    """Answer to `should_save`."""

    TRAIN = "train"
    SAVE = "save"
    MISSED = "missed"
    """TRAIN, because the outcome did not arrive in time."""


class SavePoint:
    """Proposals to this rank, and its answers at its boundaries."""

    def __init__(self, *, hold_seconds: float = HOLD_SECONDS) -> None:
        self._hold_seconds = hold_seconds
        self._changed = threading.Condition()
        self._proposal: SaveProposal | None = None
        self._agreed = False
        self._last_answer = BoundaryAnswer.TRAIN
        self.answered = -1
        """Newest answered boundary."""
        self.leaving = False
        """True once the ranks were asked to save and leave, and this rank has reached that
        boundary."""
        self.missed_id = ""
        """Id of the newest proposal that this rank missed."""

    def hear(self, message: SaveProposal | SaveAgreed | SaveWithdrawn) -> ClientMessage | None:
        """Process a message of the agent. Return the reply to a proposal."""
        # Phase 1: a proposal needs an answer now, under the lock.
        with self._changed:
            if isinstance(message, SaveProposal):
                return self._consider(message)
            # Phase 2: outcomes of older proposals are ignored by their id.
            if self._proposal is not None and self._proposal.id == message.id:
                if isinstance(message, SaveAgreed):
                    self._agreed = True
                # A withdrawal after the agreement is void: other ranks already save.
                elif not self._agreed:
                    self._proposal = None
                self._changed.notify_all()
            return None

    def forget(self) -> None:
        """Drop open proposals, because the agent is lost."""
        with self._changed:
            # An agreed save stays, because the other ranks also execute it.
            if not self._agreed:
                self._proposal = None
            self._changed.notify_all()

    def ask(self, step: int) -> BoundaryAnswer:
        """Answer the boundary of a step. Wait only at a boundary that this rank has accepted.

        Repeated calls for the same step return the same answer.
        """
        with self._changed:
            if step == self.answered:
                return self._last_answer
            answer = self._answer(step)
            self._last_answer = answer
            self.answered = max(step, self.answered)
            return answer

    def waits_at(self, step: int) -> bool:
        """Return whether the boundary of a step must wait for an accepted proposal."""
        return self._proposal is not None and step >= self._proposal.step and not self._agreed

    def _consider(self, proposal: SaveProposal) -> ClientMessage:
        if self.answered >= proposal.step or self._agreed:
            return ProposalPassed(id=proposal.id, answered=self.answered)
        self._proposal = proposal
        return ProposalAccepted(id=proposal.id)

    def _answer(self, step: int) -> BoundaryAnswer:
        if self._proposal is None:  # nearly always
            return BoundaryAnswer.TRAIN
        if not self._changed.wait_for(lambda: not self.waits_at(step), self._hold_seconds):
            self.missed_id, self._proposal = self._proposal.id, None
            return BoundaryAnswer.MISSED
        return self._take(step)

    def _take(self, step: int) -> BoundaryAnswer:
        if self._proposal is None or step < self._proposal.step:
            return BoundaryAnswer.TRAIN
        self.leaving = self.leaving or self._proposal.leave
        self._proposal, self._agreed = None, False
        return BoundaryAnswer.SAVE
