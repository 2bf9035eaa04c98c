"""However messages travel, all ranks save at the same step, and none trains past it.

The leader's round (`agent.leader.save_round`) and the ranks' save points (`drumline_client`) as
they are; hypothesis decides who moves next. A rank may be at most RUN_AHEAD steps ahead of the
slowest, as its collectives wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from drumline_agent.leader.save_round import (
    Order,
    Reply,
    RoundState,
    SaveRequest,
    apply_reply,
    begin_round,
    withdraw_round,
)
from drumline_client.save_point import BoundaryAnswer, SavePoint
from tests.property.scale import many

RUN_AHEAD = 3
SETTLE_MOVES = 10_000


@dataclass(eq=False)
class Rank:
    stride: int
    """`should_save` is asked every so many steps."""
    step: int
    point: SavePoint = field(default_factory=SavePoint)
    orders: deque[Order] = field(default_factory=deque[Order])
    replies: deque[Reply] = field(default_factory=deque[Reply])
    answers: dict[int, BoundaryAnswer] = field(default_factory=dict[int, BoundaryAnswer])


class Gang:
    def __init__(self, *, ranks: int, stride: int, steps: int, known: list[int]) -> None:
        self.ranks = [Rank(stride=stride, step=0) for _ in range(ranks)]
        for rank in self.ranks:
            for _ in range(steps):
                self.train(rank)
        reported = {index: known[index % len(known)] for index in range(ranks)}
        self.round = begin_round(SaveRequest(id="n", leave=False), steps=reported)
        self.send((self.round.proposal,))

    def send(self, orders: tuple[Order, ...]) -> None:
        for rank in self.ranks:
            rank.orders.extend(orders)

    def train(self, rank: Rank) -> None:
        """One step, unless its collectives wait for others, or the boundary for its outcome."""
        ahead = rank.step - min(other.step for other in self.ranks)
        boundary = rank.step % rank.stride == 0
        if ahead >= RUN_AHEAD or (boundary and rank.point.waits_at(rank.step)):
            return
        if boundary:
            rank.answers[rank.step] = rank.point.ask(rank.step)
        rank.step += 1

    def hear_order(self, rank: Rank) -> None:
        if rank.orders and (reply := rank.point.hear(rank.orders.popleft())):
            assert reply is not None
            rank.replies.append(reply)

    def apply_reply(self, rank: Rank) -> None:
        if rank.replies:
            index = self.ranks.index(rank)
            self.round, orders = apply_reply(self.round, index, rank.replies.popleft())
            self.send(orders)

    def move(self, kind: int, number: int) -> None:
        rank = self.ranks[number % len(self.ranks)]
        (self.train, self.hear_order, self.apply_reply)[kind](rank)
        self.check()

    def check(self) -> None:
        saved = {
            step
            for rank in self.ranks
            for step, answer in rank.answers.items()
            if answer is BoundaryAnswer.SAVE
        }
        assert len(saved) <= 1
        for step in saved:
            for rank in self.ranks:
                assert rank.answers.get(step, BoundaryAnswer.SAVE) is BoundaryAnswer.SAVE

    def all_saved(self) -> bool:
        return all(BoundaryAnswer.SAVE in rank.answers.values() for rank in self.ranks)

    def settle(self, *, withdrawn: bool) -> None:
        """Fairly, until all have saved, or nothing is under way any more."""
        for move in range(SETTLE_MOVES):
            quiet = not any(rank.orders or rank.replies for rank in self.ranks)
            if self.all_saved() or (withdrawn and quiet):
                return
            self.move(move % 3, move // 3)
        raise AssertionError("the ranks and the leader wait for each other")


@settings(max_examples=many(100, 300), deadline=None)
@given(
    gang=st.builds(
        Gang,
        ranks=st.integers(1, 4),
        stride=st.integers(1, 3),
        steps=st.integers(0, 5),
        known=st.lists(st.integers(-1, 5), min_size=1, max_size=4),
    ),
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60),
    withdraw_after=st.none() | st.integers(0, 60),
)
def test_all_ranks_save_at_the_same_step_or_none_does(
    gang: Gang, moves: list[tuple[int, int]], withdraw_after: int | None
) -> None:
    for number, move in enumerate(moves):
        if number == withdraw_after:
            gang.round, orders = withdraw_round(gang.round)
            gang.send(orders)
        gang.move(*move)
    withdrawn = gang.round.state is RoundState.WITHDRAWN
    event(f"{gang.round.state}, {min(gang.round.attempt, 3)} proposals")
    gang.settle(withdrawn=withdrawn)
    assert gang.all_saved() or withdrawn
    if withdrawn:
        assert not any(rank.point.waits_at(1 << 30) for rank in gang.ranks)
