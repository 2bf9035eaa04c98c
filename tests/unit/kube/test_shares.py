"""One namespace never takes all slots, and whoever waits gets one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.kube.shares import FairSlots, Shares


async def served(slots: FairSlots, namespace: str, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(slots.hold(namespace))


async def turns() -> None:
    """Give the other tasks eight turns of the event loop."""
    for _ in range(8):
        await asyncio.sleep(0)


def taken(shares: Shares, namespace: str) -> int:
    count = 0
    while shares.take(namespace):
        count += 1
    return count


def test_each_busy_namespace_leaves_slots_for_the_next() -> None:
    shares = Shares(128)
    assert [taken(shares, name) for name in ("a", "b", "c")] == [64, 32, 16]
    assert not shares.is_exhausted


@given(total=st.integers(1, 64), busy=st.integers(0, 8))
def test_a_namespace_without_a_slot_gets_one_while_any_is_free(total: int, busy: int) -> None:
    shares = Shares(total)
    for number in range(busy):
        taken(shares, f"busy-{number}")
    has_free = not shares.is_exhausted
    assert shares.take("new") == has_free


async def test_a_namespace_whose_writes_hang_delays_no_other() -> None:
    slots = FairSlots(4)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        hanging = [group.create_task(served(slots, "slow", stack)) for _ in range(10)]
        await turns()
        assert sum(task.done() for task in hanging) == 2
        await served(slots, "other", stack)
        for task in hanging:
            task.cancel()


async def test_namespaces_that_wait_take_turns() -> None:
    slots, order = FairSlots(1), list[str]()

    async def write(namespace: str) -> None:
        async with slots.hold(namespace):
            order.append(namespace)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for namespace in ("a", "a", "a", "b", "b", "c"):
            group.create_task(write(namespace))
    assert order == ["a", "a", "b", "c", "a", "b"]


async def test_a_cancelled_wait_takes_no_slot_along() -> None:
    slots = FairSlots(1)
    async with AsyncExitStack() as stack:
        await served(slots, "a", stack)
        early = asyncio.create_task(served(slots, "a", stack))
        late = asyncio.create_task(served(slots, "b", stack))
        await turns()
        early.cancel()
        await turns()
        await stack.aclose()  # gives the slot to the second one
        late.cancel()  # in the same moment
        for task in (early, late):
            with pytest.raises(asyncio.CancelledError):
                await task
    async with slots.hold("c"):
        pass
