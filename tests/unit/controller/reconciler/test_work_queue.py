"""The work queue against a clock that a test moves, and against a model of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drumline.controller.reconciler.work_queue import (
    BASE_BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    WorkQueue,
)

KEYS = st.sampled_from(["a", "b", "c"])


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock=clock)


def handed_out(queue: WorkQueue) -> list[str]:
    """Every key that is ready now, in order; they stay held."""
    keys: list[str] = []
    while (key := at_once(queue.get())) is not None:
        keys.append(key)
    return keys


def at_once(get: Coroutine[Any, Any, str]) -> str | None:
    """What a worker gets without waiting, else None: one step of the coroutine, by hand."""
    try:
        get.send(None)
    except StopIteration as got:
        return got.value
    except RuntimeError:  # it would wait, and there is no loop to wait in
        return None
    finally:
        get.close()
    return None


def test_a_key_waits_at_most_once(queue: WorkQueue) -> None:
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert handed_out(queue) == ["a", "b"]


def test_a_key_added_while_it_is_held_comes_again_when_it_is_done(queue: WorkQueue) -> None:
    queue.add("a")
    assert handed_out(queue) == ["a"]
    queue.add("a")
    queue.add("a")
    assert handed_out(queue) == []
    queue.done("a")
    assert handed_out(queue) == ["a"]
    queue.done("a")
    assert handed_out(queue) == []


def test_a_delayed_key_comes_when_its_time_has_come(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after("late", 10)
    queue.add_after("early", 5)
    assert handed_out(queue) == []
    clock.now += 5
    assert handed_out(queue) == ["early"]
    clock.now += 5
    assert handed_out(queue) == ["late"]


def test_of_several_delays_the_shortest_counts_once(queue: WorkQueue, clock: Clock) -> None:
    for delay in (10, 3, 7):
        queue.add_after("a", delay)
    clock.now += 3
    assert handed_out(queue) == ["a"]
    queue.done("a")
    clock.now += 10
    assert handed_out(queue) == []


def test_a_namespace_whose_keys_take_long_leaves_workers_to_others(clock: Clock) -> None:
    queue = WorkQueue(clock=clock, workers=8)
    for number in range(20):
        queue.add(f"slow/{number}")
    queue.add("other/a")
    first = handed_out(queue)
    assert sorted(first) == ["other/a", *(f"slow/{number}" for number in range(4))]
    queue.add("third/a")
    assert handed_out(queue) == ["third/a"]
    for key in ("slow/0", "slow/1"):
        queue.done(key)
    assert handed_out(queue) == ["slow/4"]


def test_namespaces_take_turns(queue: WorkQueue) -> None:
    for key in ("a/1", "a/2", "a/3", "b/1", "c/1"):
        queue.add(key)
    assert handed_out(queue) == ["a/1", "b/1", "c/1", "a/2", "a/3"]


async def test_a_waiting_worker_wakes_when_its_namespace_may_have_one_more() -> None:
    queue = WorkQueue(clock=asyncio.get_running_loop().time, workers=2)
    for key in ("a/1", "a/2"):
        queue.add(key)
    assert await queue.get() == "a/1"
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not worker.done()
    queue.done("a/1")
    assert await worker == "a/2"


def test_failures_back_off_until_forgotten(queue: WorkQueue) -> None:
    delays = [queue.retry("a") for _ in range(12)]
    assert delays[:4] == [BASE_BACKOFF_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert delays[-1] == MAX_BACKOFF_SECONDS
    assert queue.retry("b") == BASE_BACKOFF_SECONDS
    queue.forget("a")
    assert queue.retry("a") == BASE_BACKOFF_SECONDS


async def test_a_waiting_worker_wakes_for_a_key() -> None:
    queue = WorkQueue(clock=asyncio.get_running_loop().time)
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        for key in ("a", "b", "c"):
            queue.add(key)
    assert {worker.result() for worker in workers} == {"a", "b", "c"}


async def test_a_waiting_worker_wakes_for_a_shorter_delay() -> None:
    queue = WorkQueue(clock=asyncio.get_running_loop().time)
    queue.add_after("in an hour", 3600)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after("now", 0.001)
    assert await worker == "now"


async def test_a_worker_that_is_cancelled_takes_no_key_along() -> None:
    queue = WorkQueue(clock=asyncio.get_running_loop().time)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    queue.add("a")
    assert await queue.get() == "a"


async def test_a_dropped_key_leaves_nothing_behind(queue: WorkQueue, clock: Clock) -> None:
    for number in range(1000):
        queue.add_after(f"gone-{number}", 604_800)  # a time to live of a week
        queue.retry(f"gone-{number}")
        queue.drop(f"gone-{number}")
    queue.add_after("stays", 604_800)
    gc.collect()
    memory = gc.get_referents(*gc.get_referents(queue))
    assert sum(str(part).count("gone-") for part in memory) < 300
    clock.now += 604_800
    assert await queue.get() == "stays"


async def test_it_is_idle_when_no_key_is_ready_or_held(queue: WorkQueue) -> None:
    await queue.wait_idle()
    queue.add("a")
    assert await queue.get() == "a"
    idle = asyncio.create_task(queue.wait_idle())
    queue.add("a")
    queue.done("a")
    await asyncio.sleep(0)
    assert not idle.done()  # it came again while it was held
    assert await queue.get() == "a"
    queue.add_after("b", 5.0)
    queue.done("a")
    await idle


class QueueModel(RuleBasedStateMachine):
    """Any sequence of calls: a key that is owed is handed out, held by one worker at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = WorkQueue(clock=self.clock)
        self.owed: set[str] = set()
        self.due: dict[str, float] = {}
        self.held: set[str] = set()

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.owed.add(key)

    @rule(key=KEYS, delay=st.integers(0, 20))
    def add_after(self, key: str, delay: int) -> None:
        self.queue.add_after(key, delay)
        self.due[key] = min(self.due.get(key, float("inf")), self.clock.now + delay)

    @rule(seconds=st.integers(1, 30))
    def pass_time(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def get(self) -> None:
        self.fall_due()
        key = at_once(self.queue.get())
        ready = self.owed - self.held
        if key is None:
            assert not ready
            return
        assert key in ready
        self.owed.discard(key)
        self.held.add(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.done(key)
        self.held.discard(key)

    def fall_due(self) -> None:
        for key in [key for key, due in self.due.items() if due <= self.clock.now]:
            del self.due[key]
            self.owed.add(key)

    @invariant()
    def counts_what_is_ready(self) -> None:
        assert len(self.queue) <= len(self.owed | self.due.keys())

    def teardown(self) -> None:
        """In the end, with all workers free and all delays over, everything owed comes out."""
        for key in self.held:
            self.queue.done(key)
        self.held.clear()
        self.clock.now += 1000
        self.fall_due()
        assert sorted(handed_out(self.queue)) == sorted(self.owed)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
