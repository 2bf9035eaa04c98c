"""Saves that the agents request of a user's script, in one attempt; pure but for its callbacks.

    notice -> request -> all ranks that call `should_save` are connected, or SETTLE_SECONDS passed
           -> a round (`save_round`) until they agree -> their parts (`checkpoint_parts`) -> answer

The answer is the step of a complete checkpoint at or after the agreed step, or an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from drumline_agent.leader.checkpoint_parts import (
    CheckpointParts,
    CompleteCheckpoint,
    FailedCheckpoint,
)
from drumline_agent.leader.save_round import (
    Order,
    Reply,
    RoundState,
    SaveRequest,
    SaveRound,
    apply_reply,
    begin_round,
    withdraw_round,
)
from drumline_agent.protocol.client_messages import ConnectionClosed
from drumline_client.wire import (
    MAX_NUMBER,
    ClientMessage,
    Hello,
    PartBegun,
    PartSaved,
    ProposalAccepted,
    ProposalMissed,
    ProposalPassed,
    RestoreFailed,
    SnapshotWritten,
    StepReport,
    WorkDone,
)

REPLY_SECONDS: Final = 5.0
"""Time in which ranks must reply to a proposal. A client's thread replies at once."""
SETTLE_SECONDS: Final = 5.0
"""Time to wait for ranks that have not joined, once others call `should_save`."""
NEVER_ASKED: Final = "the program does not acknowledge saves"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAnswer:
    """The outcome of a request, or a checkpoint of the script's own."""

    request: SaveRequest | None
    step: int | None
    path: str = ""
    error: str = ""


@dataclass(slots=True)
class _Rank:
    world_size: int
    step: int = -1
    saves: bool = False


class ClientSaves:
    """Saves of one attempt."""

    def __init__(
        self,
        *,
        send: Callable[[Order], None],
        answer: Callable[[SaveAnswer], None],
        call_later: Callable[[float, Callable[[], None]], object],
        lead_steps: Callable[[], int],
        will_ask: bool,
    ) -> None:
        """Start without ranks.

        Args:
            send: sends an order to every rank.
            answer: receives the result of a request, or an unrequested checkpoint.
            call_later: calls back after a number of seconds.
            lead_steps: number of steps between the newest step and a proposed one.
            will_ask: whether the program called `should_save` in an earlier attempt.
        """
        self._send = send
        self._answer = answer
        self._call_later = call_later
        self._lead_steps = lead_steps
        self.will_ask = will_ask
        """The program asks `should_save`."""
        self._ranks: dict[int, _Rank] = {}
        self._parts: CheckpointParts | None = None
        self._request: SaveRequest | None = None
        self._next: SaveRequest | None = None
        """The newest request that came after the ranks had agreed to save for an earlier one."""
        self._round: SaveRound | None = None
        self._attempts = 0
        """Number of proposals of this request so far. Each proposal has its own id."""
        self._is_settled = False

    def request(self, request: SaveRequest) -> None:
        """Make the ranks save. The request replaces an earlier one that is not agreed yet.

        After an agreement it waits for the answer: it may ask the ranks to leave.
        """
        if self._request is not None and self._request.id == request.id:
            return
        if self._round is not None and self._round.state is RoundState.AGREED:
            self._next = request
            return
        self._drop_round()
        self._request, self._attempts, self._is_settled = request, 0, False
        if not self.will_ask:
            self._end(step=None, error=NEVER_ASKED)
            return
        self._begin()

    def withdraw(self, request_id: str) -> None:
        """Drop the request with this id, unless the ranks have agreed."""
        if self._next is not None and self._next.id == request_id:
            self._next = None
        if self._request is None or self._request.id != request_id:
            return
        if self._round is None or self._round.state is not RoundState.AGREED:
            self._drop_round()
            self._request = None

    def handle(self, rank: int, message: ClientMessage | ConnectionClosed) -> None:
        """Handle a message from a rank's client."""
        match message:
            case Hello():
                self._join(rank, message)
            case ConnectionClosed():
                self._lose(rank)
            case ProposalAccepted() | ProposalPassed() | ProposalMissed():
                self._reply(rank, message)
            case StepReport():
                self._report(rank, message)
            case PartBegun() | PartSaved():
                self._part(rank, message)
            case WorkDone():
                self._part(rank, StepReport(at=0.0, phase="done", saves=False, step=MAX_NUMBER))
                self._lose(rank)
            case SnapshotWritten() | RestoreFailed():
                pass  # the agent beside the rank acts on these

    def _join(self, rank: int, hello: Hello) -> None:
        self._ranks[rank] = _Rank(hello.world_size, step=hello.answered)
        if self._parts is None:
            self._parts = CheckpointParts(world_size=hello.world_size)

    def _report(self, rank: int, report: StepReport) -> None:
        state = self._ranks.get(rank)
        if state is None:
            return
        state.step = max(state.step, -1 if report.step is None else report.step)
        # The first call of `should_save` shows that this rank takes part in a request under way.
        if report.saves and not state.saves:
            state.saves = self.will_ask = True
            self._begin()
        self._part(rank, report)

    def _begin(self) -> None:
        """Propose a step once all ranks have joined or the time to join is over."""
        savers = {rank: state.step for rank, state in self._ranks.items() if state.saves}
        request = self._request
        if request is None or self._round is not None or not savers:
            return
        # A rank that joins after the agreement would not save, so wait for all of them first.
        if len(savers) < max(self._ranks[rank].world_size for rank in savers) and (
            not self._is_settled
        ):
            self._call_later(SETTLE_SECONDS, lambda: self._settle(request))
            return
        lead = self._lead_steps()
        self._propose(begin_round(request, steps=savers, lead_steps=lead))

    def _settle(self, request: SaveRequest) -> None:
        if request is self._request and not self._is_settled:
            self._is_settled = True
            self._begin()

    def _propose(self, proposed: SaveRound) -> None:
        """Send a new proposal, or a later step of the same round."""
        self._attempts += 1
        self._round = SaveRound(
            proposed.request,
            step=proposed.step,
            ranks=proposed.ranks,
            lead_steps=proposed.lead_steps,
            attempt=self._attempts,
        )
        # The id of this attempt: a late reply to an earlier proposal must not count.
        waited_for = self._round.proposal.id
        self._send(self._round.proposal)
        self._call_later(REPLY_SECONDS, lambda: self._time_out(waited_for))

    def _time_out(self, proposal_id: str) -> None:
        current = self._round
        if current is None or current.proposal.id != proposal_id:
            return
        # A rank is stuck or gone. Propose a later step, with the ranks that are connected now.
        if current.state is RoundState.PROPOSED:
            self._drop_round()
            self._begin()

    def _reply(self, rank: int, reply: Reply) -> None:
        if self._round is None:
            return
        before = self._round
        after, orders = apply_reply(before, rank, reply)
        if after.attempt == before.attempt:
            self._round = after
            for order in orders:
                self._send(order)
            return
        self._send(orders[0])  # withdrawn; `_propose` sends the next with its time limit
        self._propose(after)

    def _lose(self, rank: int) -> None:
        """Remove a rank. An open proposal starts again without it."""
        self._ranks.pop(rank, None)
        current = self._round
        if current is None or rank not in current.ranks:
            return
        # An agreed round stays: the rank may have saved its part before its connection closed.
        if current.state is RoundState.PROPOSED:
            self._drop_round()
            self._begin()

    def _part(self, rank: int, message: StepReport | PartBegun | PartSaved) -> None:
        outcome = None if self._parts is None else self._parts.handle(rank, message)
        match outcome:
            case CompleteCheckpoint(step=step, path=path):
                # A checkpoint of an earlier step is an ordinary one, not the answer to the request.
                if self._answers(step):
                    self._end(step=step, path=path)
                else:
                    self._answer(SaveAnswer(request=None, step=step, path=path))
            case FailedCheckpoint(step=step, rank=failed, error=error):
                if self._answers(step):
                    self._end(step=None, error=f"rank {failed} could not save step {step}: {error}")
            case None:
                pass

    def _answers(self, step: int) -> bool:
        current = self._round
        return current is not None and current.state is RoundState.AGREED and step >= current.step

    def _end(self, *, step: int | None, path: str = "", error: str = "") -> None:
        request, self._request, self._round = self._request, None, None
        self._answer(SaveAnswer(request=request, step=step, path=path, error=error))
        later, self._next = self._next, None
        if later is not None:
            self.request(later)

    def _drop_round(self) -> None:
        if self._round is not None:
            _, orders = withdraw_round(self._round)
            self._round = None
            for order in orders:
                self._send(order)
