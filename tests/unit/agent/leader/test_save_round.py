from __future__ import annotations

import pytest

from drumline_agent.leader.save_round import (
    LONGEST_LEAD_STEPS,
    RoundState,
    SaveRequest,
    SaveRound,
    apply_reply,
    begin_round,
    lead_steps,
    withdraw_round,
)
from drumline_client.wire import (
    ProposalAccepted,
    ProposalMissed,
    ProposalPassed,
    SaveAgreed,
    SaveProposal,
    SaveWithdrawn,
)

SPOT = SaveRequest(id="spot", leave=True, reason="the node ends", deadline=99.0)


def two_ranks() -> SaveRound:
    return begin_round(SPOT, steps={0: 41, 1: 40})


def test_the_step_lies_beyond_what_any_rank_has_reported() -> None:
    assert two_ranks().proposal == SaveProposal(
        id="spot/1", step=42, leave=True, reason="the node ends", deadline=99.0
    )
    assert begin_round(SPOT, steps={0: -1}).step == 0
    with pytest.raises(ValueError, match="no ranks"):
        begin_round(SPOT, steps={})


def test_all_have_to_accept() -> None:
    current, orders = apply_reply(two_ranks(), 0, ProposalAccepted("spot/1"))
    assert (current.state, orders) == (RoundState.PROPOSED, ())
    current, orders = apply_reply(current, 0, ProposalAccepted("spot/1"))
    assert (current.state, orders) == (RoundState.PROPOSED, ())
    current, orders = apply_reply(current, 1, ProposalAccepted("spot/1"))
    assert (current.state, orders) == (RoundState.AGREED, (SaveAgreed("spot/1"),))


def test_a_rank_that_has_passed_the_step_gets_a_later_one() -> None:
    current, _ = apply_reply(two_ranks(), 0, ProposalAccepted("spot/1"))
    current, orders = apply_reply(current, 1, ProposalPassed("spot/1", answered=50))
    assert orders == (SaveWithdrawn("spot/1"), current.proposal)
    assert (current.proposal.id, current.proposal.step) == ("spot/2", 52)
    assert current.accepted == frozenset()
    again, orders = apply_reply(current, 1, ProposalPassed("spot/2", answered=60))
    assert (again.proposal.id, again.proposal.step) == ("spot/3", 64)


def test_an_acceptance_of_an_earlier_proposal_does_not_count() -> None:
    current, _ = apply_reply(two_ranks(), 1, ProposalPassed("spot/1", answered=42))
    assert apply_reply(current, 0, ProposalAccepted("spot/1")) == (current, ())
    assert apply_reply(current, 7, ProposalAccepted("spot/2")) == (current, ())


def test_a_rank_that_missed_the_outcome_gets_a_later_step() -> None:
    current, orders = apply_reply(two_ranks(), 0, ProposalMissed("spot/1"))
    assert orders == (SaveWithdrawn("spot/1"), SaveProposal("spot/2", 44, True, *_texts()))
    assert current.state is RoundState.PROPOSED


def _texts() -> tuple[str, float]:
    return "the node ends", 99.0


def test_only_what_is_not_agreed_is_withdrawn() -> None:
    dropped, orders = withdraw_round(two_ranks())
    assert (dropped.state, orders) == (RoundState.WITHDRAWN, (SaveWithdrawn("spot/1"),))
    assert apply_reply(dropped, 0, ProposalAccepted("spot/1")) == (dropped, ())
    current, _ = apply_reply(two_ranks(), 0, ProposalAccepted("spot/1"))
    agreed, _ = apply_reply(current, 1, ProposalAccepted("spot/1"))
    assert withdraw_round(agreed) == (agreed, ())


def test_the_lead_is_what_the_fastest_rank_does_while_a_proposal_travels() -> None:
    assert lead_steps([2.0, 1.0]) == 1
    assert lead_steps([0.1, 1.0]) == 3
    assert lead_steps([]) == 1
    assert lead_steps([0.0]) == LONGEST_LEAD_STEPS
