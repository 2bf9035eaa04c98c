"""A request to save, from the notice to the answer, with ranks that are played."""

from __future__ import annotations

from collections.abc import Callable

from drumline_agent.leader.client_saves import (
    NEVER_ASKED,
    REPLY_SECONDS,
    SETTLE_SECONDS,
    ClientSaves,
    SaveAnswer,
)
from drumline_agent.leader.save_round import Order, SaveRequest
from drumline_agent.protocol.client_messages import ConnectionClosed
from drumline_client.wire import (
    Hello,
    PartSaved,
    ProposalAccepted,
    ProposalPassed,
    SaveAgreed,
    SaveProposal,
    SaveWithdrawn,
    StepReport,
    WorkDone,
)
from tests.texts import missing

NOTICE = SaveRequest(id="spot", leave=False)


class Played:
    """Two ranks; timers run when the test says so."""

    def __init__(self, *, will_ask: bool = False) -> None:
        self.sent: list[Order] = []
        self.answers: list[SaveAnswer] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.saves = ClientSaves(
            send=self.sent.append,
            answer=self.answers.append,
            call_later=lambda seconds, callback: self.timers.append((seconds, callback)),
            lead_steps=lambda: 2,
            will_ask=will_ask,
        )

    def join(self, rank: int, *, step: int | None = 10, saves: bool = True) -> None:
        self.saves.handle(rank, Hello(v=1, pid=1, rank=rank, local_rank=0, world_size=2))
        self.report(rank, step=step, saves=saves)

    def report(self, rank: int, *, step: int | None, saves: bool = True) -> None:
        self.saves.handle(rank, StepReport(at=0.0, phase="training", saves=saves, step=step))

    def run_timers(self, seconds: float) -> None:
        due = [callback for after, callback in self.timers if after == seconds]
        self.timers = [timer for timer in self.timers if timer[0] != seconds]
        for callback in due:
            callback()

    def accept(self, *ranks: int) -> None:
        proposal = self.proposal
        for rank in ranks:
            self.saves.handle(rank, ProposalAccepted(id=proposal.id))

    @property
    def proposal(self) -> SaveProposal:
        return [order for order in self.sent if isinstance(order, SaveProposal)][-1]


def two_ranks() -> Played:
    played = Played()
    played.join(0)
    played.join(1, step=11)
    return played


def test_a_notice_is_answered_with_the_step_that_all_ranks_have_saved() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    assert (played.proposal.step, played.proposal.id) == (13, "spot/1")
    played.accept(0, 1)
    assert played.sent[-1] == SaveAgreed("spot/1")
    played.saves.handle(0, PartSaved(step=13, path="/p"))
    assert not played.answers
    played.saves.handle(1, PartSaved(step=13, path="/q"))
    assert played.answers == [SaveAnswer(request=NOTICE, step=13, path="/p")]


def test_a_rank_that_has_passed_the_step_is_asked_for_a_later_one() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    first = played.proposal
    played.accept(0)
    played.saves.handle(1, ProposalPassed(id=first.id, answered=20))
    assert played.sent[-2] == SaveWithdrawn(first.id)
    assert played.proposal.step > 20
    assert played.proposal.id != first.id
    played.accept(0, 1)
    assert played.sent[-1] == SaveAgreed(played.proposal.id)


def test_a_program_that_never_asks_is_answered_for_at_once() -> None:
    played = Played()
    played.join(0, saves=False)
    played.saves.request(NOTICE)
    assert played.answers == [SaveAnswer(request=NOTICE, step=None, error=NEVER_ASKED)]
    assert not played.sent


def test_ranks_that_have_started_again_are_waited_for() -> None:
    played = Played(will_ask=True)
    played.saves.request(NOTICE)
    assert not played.answers
    played.join(0)
    assert not played.sent
    played.join(1)
    assert played.proposal.step == 12


def test_ranks_that_do_not_join_are_waited_for_so_long_and_no_longer() -> None:
    played = Played(will_ask=True)
    played.saves.request(NOTICE)
    played.join(0)
    played.run_timers(SETTLE_SECONDS)
    played.accept(0)
    assert played.sent[-1] == SaveAgreed("spot/1")


def test_a_proposal_without_replies_is_withdrawn_and_made_again() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    first = played.proposal
    played.accept(0)
    played.report(0, step=30)
    played.run_timers(REPLY_SECONDS)
    assert played.sent[-2] == SaveWithdrawn(first.id)
    assert (played.proposal.id, played.proposal.step) == ("spot/2", 32)


def test_a_rank_that_is_lost_before_all_have_accepted_withdraws_the_proposal() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    first = played.proposal
    played.accept(0)
    played.saves.handle(1, ConnectionClosed())
    assert played.sent[-1] == SaveWithdrawn(first.id)
    played.join(1, step=11)
    assert played.proposal.id == "spot/2"


def test_what_is_agreed_cannot_be_withdrawn() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    played.accept(0, 1)
    sent = len(played.sent)
    played.saves.withdraw("spot")
    played.saves.handle(1, ConnectionClosed())
    played.run_timers(REPLY_SECONDS)
    assert len(played.sent) == sent


def test_a_notice_that_comes_during_a_save_is_proposed_after_it() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    played.accept(0, 1)
    for name in ("earlier", "preempted"):
        played.saves.request(SaveRequest(id=name, leave=True))
    assert played.proposal.id == "spot/1"
    for rank in (0, 1):
        played.saves.handle(rank, PartSaved(step=13, path="/p"))
    assert played.answers == [SaveAnswer(request=NOTICE, step=13, path="/p")]
    assert (played.proposal.id, played.proposal.leave) == ("preempted/1", True)


def test_a_notice_that_is_withdrawn_during_another_save_is_not_proposed() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    played.accept(0, 1)
    played.saves.request(SaveRequest(id="preempted", leave=True))
    played.saves.withdraw("preempted")
    for rank in (0, 1):
        played.saves.handle(rank, PartSaved(step=13, path="/p"))
    assert played.proposal.id == "spot/1"


def test_a_withdrawn_notice_is_proposed_no_more() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    played.saves.withdraw("spot")
    assert played.sent[-1] == SaveWithdrawn("spot/1")
    played.join(1)
    played.run_timers(REPLY_SECONDS)
    assert len(played.sent) == 2
    assert not played.answers


def test_a_rank_that_ends_well_has_no_part() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    played.accept(0, 1)
    played.saves.handle(1, WorkDone())
    played.saves.handle(0, PartSaved(step=13, path="/p"))
    assert played.answers == [SaveAnswer(request=NOTICE, step=13, path="/p")]


def test_a_checkpoint_of_the_scripts_own_answers_no_notice_that_is_not_agreed() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    for rank in (0, 1):
        played.saves.handle(rank, PartSaved(step=11, path="/own"))
    assert played.answers == [SaveAnswer(request=None, step=11, path="/own")]


def test_a_part_that_could_not_be_written_is_the_answer() -> None:
    played = two_ranks()
    played.saves.request(NOTICE)
    played.accept(0, 1)
    played.saves.handle(1, PartSaved(step=13, error="disk full"))
    [answer] = played.answers
    assert (answer.request, answer.step) == (NOTICE, None)
    assert not missing(answer.error, "rank 1", "step 13")
