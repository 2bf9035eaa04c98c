from __future__ import annotations

import threading

from drumline_client.save_point import BoundaryAnswer, SavePoint
from drumline_client.wire import (
    ProposalAccepted,
    ProposalPassed,
    SaveAgreed,
    SaveProposal,
    SaveWithdrawn,
)
from tests.patience import HANG_SECONDS

TRAIN, SAVE, MISSED = BoundaryAnswer.TRAIN, BoundaryAnswer.SAVE, BoundaryAnswer.MISSED


def test_an_agreed_step_is_saved_at_the_first_boundary_at_or_beyond_it() -> None:
    point = SavePoint()
    assert point.ask(40) is TRAIN
    assert point.hear(SaveProposal(id="n/1", step=45)) == ProposalAccepted("n/1")
    point.hear(SaveAgreed("n/1"))
    assert [point.ask(step) for step in (42, 44, 46, 48)] == [TRAIN, TRAIN, SAVE, TRAIN]


def test_a_boundary_that_was_answered_cannot_be_accepted() -> None:
    point = SavePoint()
    point.ask(45)
    assert point.hear(SaveProposal(id="n/1", step=45)) == ProposalPassed("n/1", answered=45)
    assert point.ask(46) is TRAIN


def test_a_withdrawn_proposal_is_trained_past() -> None:
    point = SavePoint()
    point.hear(SaveProposal(id="n/1", step=2))
    point.hear(SaveWithdrawn("n/1"))
    assert point.ask(2) is TRAIN


def test_words_about_another_proposal_change_nothing() -> None:
    point = SavePoint(hold_seconds=0.0)
    point.hear(SaveProposal(id="n/2", step=2))
    point.hear(SaveAgreed("n/1"))
    point.hear(SaveWithdrawn("n/1"))
    assert point.waits_at(2)
    assert not point.waits_at(1)


def test_what_is_agreed_is_final() -> None:
    point = SavePoint()
    point.hear(SaveProposal(id="n/1", step=2))
    point.hear(SaveAgreed("n/1"))
    point.hear(SaveWithdrawn("n/1"))
    point.forget()
    assert isinstance(point.hear(SaveProposal(id="m/1", step=9)), ProposalPassed)
    assert point.ask(2) is SAVE


def test_a_boundary_asked_again_has_the_same_answer() -> None:
    point = SavePoint()
    point.hear(SaveProposal(id="n/1", step=2))
    point.hear(SaveAgreed("n/1"))
    assert [point.ask(2), point.ask(2), point.ask(3)] == [SAVE, SAVE, TRAIN]


def test_an_accepted_boundary_waits_for_its_outcome() -> None:
    point = SavePoint()
    point.hear(SaveProposal(id="n/1", step=2, leave=True))
    answers: list[BoundaryAnswer] = []
    training = threading.Thread(target=lambda: answers.append(point.ask(2)))
    training.start()
    assert not point.leaving
    point.hear(SaveAgreed("n/1"))
    training.join(HANG_SECONDS)
    assert answers == [SAVE]
    assert point.leaving


def test_without_an_outcome_the_rank_trains_on_and_says_so() -> None:
    point = SavePoint(hold_seconds=0.0)
    point.hear(SaveProposal(id="n/1", step=2))
    assert point.ask(2) is MISSED
    assert point.missed_id == "n/1"
    point.hear(SaveAgreed("n/1"))
    assert point.ask(3) is TRAIN


def test_a_lost_agent_ends_the_wait() -> None:
    point = SavePoint()
    point.hear(SaveProposal(id="n/1", step=2))
    point.forget()
    assert point.ask(2) is TRAIN
