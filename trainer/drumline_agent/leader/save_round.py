"""The leader's half of the agreement on the step at which a user's ranks save (`drumline_client`).

A two-phase commit over step numbers. Messages from one rank arrive in order; those of several ranks
in any. A round ends by being agreed, which is final, or by being withdrawn.

    try 1   propose step 42 to all     rank 0 accepts, rank 1 has passed 42 already
            withdraw; propose step 45  both accept            -> agreed
    rank 0 and rank 1                  `should_save` is True at their first boundary >= 45

Agreed is sent only after every rank has accepted, and a rank that accepted waits at that boundary:
so no rank trains past it while another saves. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from drumline_client.wire import (
    ProposalAccepted,
    ProposalMissed,
    ProposalPassed,
    SaveAgreed,
    SaveProposal,
    SaveWithdrawn,
)

Reply = ProposalAccepted | ProposalPassed | ProposalMissed
Order = SaveProposal | SaveAgreed | SaveWithdrawn
"""To every rank of the round."""
LONGEST_LEAD_STEPS = 1 << 16


class RoundState(StrEnum):
    """State of a round."""

    PROPOSED = "proposed"
    AGREED = "agreed"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A request that the ranks save."""

    id: str
    leave: bool
    reason: str = ""
    deadline: float | None = None
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SaveRound:
    """One request, from the first proposal to its outcome."""

    request: SaveRequest
    step: int
    """The ranks save at their first boundary at or beyond it."""
    ranks: frozenset[int]
    lead_steps: int
    """Number of steps between the newest known boundary and the proposed step."""
    attempt: int = 1
    """Number of the proposal. Each proposal has its own id."""
    accepted: frozenset[int] = field(default_factory=frozenset[int])
    state: RoundState = RoundState.PROPOSED

    @property
    def proposal(self) -> SaveProposal:
        """The proposal to every rank, also to one that connects while the round is open."""
        return SaveProposal(
            id=f"{self.request.id}/{self.attempt}",
            step=self.step,
            leave=self.request.leave,
            reason=self.request.reason,
            deadline=self.request.deadline,
        )


def begin_round(
    request: SaveRequest, *, steps: Mapping[int, int], lead_steps: int = 1
) -> SaveRound:
    """Begin a round that proposes a step to these ranks. `proposal` is then sent to each.

    Args:
        request: the request to save.
        steps: newest known step of each rank; -1 if it has reported none.
        lead_steps: steps that ranks may finish during its travel; 1 if steps are long.

    Raises:
        ValueError: there are no ranks.
    """
    if not steps:
        raise ValueError("a round of no ranks")
    lead = max(1, min(lead_steps, LONGEST_LEAD_STEPS))
    return SaveRound(
        request, step=max(steps.values()) + lead, ranks=frozenset(steps), lead_steps=lead
    )


def apply_reply(current: SaveRound, rank: int, reply: Reply) -> tuple[SaveRound, tuple[Order, ...]]:
    """Return the round after a rank's reply, and the orders to all its ranks.

    Replies to an earlier proposal change nothing.

    Args:
        current: the round before the reply.
        rank: the rank that replied.
        reply: its reply.
    """
    stale = reply.id != current.proposal.id or rank not in current.ranks
    if stale or current.state is not RoundState.PROPOSED:
        return current, ()
    match reply:
        case ProposalAccepted():
            accepted = replace(current, accepted=current.accepted | {rank})
            if accepted.accepted != current.ranks:
                return accepted, ()
            return replace(accepted, state=RoundState.AGREED), (SaveAgreed(reply.id),)
        case ProposalPassed(answered=answered):
            again = _propose_later(current, beyond=answered)
        case ProposalMissed():
            again = _propose_later(current, beyond=current.step)
    return again, (SaveWithdrawn(reply.id), again.proposal)


def withdraw_round(current: SaveRound) -> tuple[SaveRound, tuple[Order, ...]]:
    """Drop a round that is not agreed: its request is void, or a rank was lost or is silent."""
    if current.state is not RoundState.PROPOSED:
        return current, ()
    dropped = replace(current, state=RoundState.WITHDRAWN)
    return dropped, (SaveWithdrawn(current.proposal.id),)


def lead_steps(step_seconds: Collection[float], *, travel_seconds: float = 0.25) -> int:
    """Return the steps that the fastest rank may finish while a proposal travels and returns."""
    fastest = min(step_seconds, default=travel_seconds)
    if fastest <= 0:
        return LONGEST_LEAD_STEPS
    return max(1, min(LONGEST_LEAD_STEPS, -int(-travel_seconds // fastest)))


def _propose_later(current: SaveRound, *, beyond: int) -> SaveRound:
    lead = min(2 * current.lead_steps, LONGEST_LEAD_STEPS)
    return replace(
        current,
        step=max(beyond, current.step) + lead,
        lead_steps=lead,
        attempt=current.attempt + 1,
        accepted=frozenset(),
    )
