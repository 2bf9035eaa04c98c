from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator

import pytest

from drumline_agent.rank_protocol.control import Control, InterruptedByAgentError
from drumline_agent.rank_protocol.orders import (
    Interrupt,
    RankOrder,
    Replicated,
    Resume,
    SaveNotice,
    Withdraw,
    parse_rank_order,
)
from drumline_agent.rank_protocol.placement import Placement


def place(attempt: int, *, generation: int = 1) -> Placement:
    return Placement(rank=1, world_size=2, generation=generation, attempt=attempt)


ORDERS = [
    Resume(placement=place(3)),
    Interrupt(generation=2, attempt=1),
    SaveNotice(id="n", leave=True),
    Withdraw(id="n"),
    Replicated(step=7, seconds=0.25, processor_seconds=0.125),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_orders_survive_a_line_of_json(order: RankOrder) -> None:
    line = order.to_json()
    assert "\n" not in line
    assert parse_rank_order(line) == order


@pytest.mark.parametrize("line", ["[]", "{}", '{"resume": 1}', '{"notice": {"id": "n"}}', "x"])
def test_what_is_no_order_is_refused(line: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_rank_order(line)


class Agent:
    """The other end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, *orders: RankOrder) -> None:
        os.write(self._descriptor, b"".join(o.to_json().encode() + b"\n" for o in orders))

    def leave(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def close(self) -> None:
        if self._descriptor >= 0:
            self.leave()


@pytest.fixture
def pipe() -> Iterator[tuple[Control, Agent]]:
    orders, written = os.pipe()
    agent = Agent(written)
    yield Control(orders), agent
    agent.close()


def test_waits_for_a_higher_membership_than_it_has_left(pipe: tuple[Control, Agent]) -> None:
    control, agent = pipe
    control.enter((1, 2))
    agent.say(
        Resume(placement=place(1)),
        Resume(placement=place(2)),
        Resume(placement=place(0, generation=2)),
    )
    assert control.wait_for_placement().membership == (2, 0)


def test_orders_are_in_force_in_the_order_they_were_given(pipe: tuple[Control, Agent]) -> None:
    control, agent = pipe
    first = SaveNotice(id="first", leave=False)
    second = SaveNotice(id="second", leave=True)
    agent.say(first, Replicated(step=4, seconds=0.5), second, Withdraw(id="first"))
    agent.say(Resume(placement=place(1)))
    control.wait_for_placement()  # all orders before it have been read
    assert control.notice == second
    assert control.replicated == Replicated(step=4, seconds=0.5)
    control.clear_notice("first")
    assert control.notice == second
    control.clear_notice("second")
    assert control.notice is None


def test_a_withdrawn_notice_is_gone(pipe: tuple[Control, Agent]) -> None:
    control, agent = pipe
    agent.say(SaveNotice(id="n", leave=True), Withdraw(id="n"))
    agent.say(Resume(placement=place(1)))
    control.wait_for_placement()
    assert control.notice is None


def test_an_interrupt_is_repeated_until_the_training_thread_has_left(
    pipe: tuple[Control, Agent],
) -> None:
    """The first one may come before there is anything to break."""
    control, agent = pipe
    late: queue.SimpleQueue[float] = queue.SimpleQueue()
    control.on_interrupt = late.put
    control.enter((1, 4))
    agent.say(Interrupt(generation=1, attempt=4), Resume(placement=place(5)))
    first, second, third = (late.get() for _ in range(3))
    assert 0 <= first < second < third
    with pytest.raises(InterruptedByAgentError):
        control.check()
    assert control.wait_for_placement().membership == (1, 5)
    control.enter((1, 5))
    control.check()


def test_an_interrupt_that_fails_is_repeated_and_further_orders_are_read(
    pipe: tuple[Control, Agent],
) -> None:
    control, agent = pipe
    late: queue.SimpleQueue[float] = queue.SimpleQueue()

    def fail(seconds: float) -> None:
        late.put(seconds)
        raise RuntimeError("the group has been destroyed meanwhile")

    control.on_interrupt = fail
    control.enter((1, 4))
    agent.say(Interrupt(generation=1, attempt=4), Resume(placement=place(5)))
    assert late.get() < late.get()
    assert control.wait_for_placement().membership == (1, 5)


def test_a_new_placement_ends_the_old_membership(pipe: tuple[Control, Agent]) -> None:
    control, agent = pipe
    interrupted = threading.Event()
    control.on_interrupt = lambda _: interrupted.set()
    control.enter((1, 4))
    agent.say(Resume(placement=place(5)))
    interrupted.wait()
    with pytest.raises(InterruptedByAgentError):
        control.check()
    assert control.wait_for_placement().membership == (1, 5)


def test_an_interrupt_of_an_older_membership_is_none(pipe: tuple[Control, Agent]) -> None:
    control, agent = pipe
    interrupted = threading.Event()
    control.on_interrupt = lambda _: interrupted.set()
    control.enter((1, 4))
    agent.say(Interrupt(generation=1, attempt=3), SaveNotice(id="n", leave=False))
    agent.say(Withdraw(id="n"), Resume(placement=place(4)))
    agent.leave()
    with pytest.raises(ConnectionError, match="closed"):
        control.wait_for_placement()
    assert not interrupted.is_set()


def test_a_membership_that_was_ended_before_it_was_entered(pipe: tuple[Control, Agent]) -> None:
    control, agent = pipe
    agent.say(Interrupt(generation=1, attempt=0), Resume(placement=place(1)))
    control.wait_for_placement()
    with pytest.raises(InterruptedByAgentError):
        control.enter((1, 0))
    control.wait_for_placement()
