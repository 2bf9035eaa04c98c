"""Records and notices on their way: one of each for a job, and no job waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from drumline.controller.agents.deliveries import CRASHED_RETRY_SECONDS, Deliveries
from drumline_contract import GenerationRecord, Member, Notice
from tests.patience import HANG_SECONDS


def record(generation: int) -> GenerationRecord:
    member = Member(index=0, pod_uid="p0", address="127.0.0.1", host="j-0", ranks=1)
    return GenerationRecord(job_uid="job", generation=generation, epoch=1, members=(member,))


class Outbox:
    """Deliveries that end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.enqueued: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.deliveries = Deliveries(
            enqueue_after=lambda key, seconds: self.enqueued.put_nowait((key, seconds))
        )

    def send(self, name: str, message: GenerationRecord | Notice, *, uid: str = "job") -> None:
        async def deliver() -> float:
            self.begun.append(name)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return 0.0

        self.deliveries.start(uid=uid, key=f"team/{uid}", message=message, deliver=deliver)

    async def next_enqueued(self) -> tuple[str, float]:
        async with asyncio.timeout(HANG_SECONDS):
            return await self.enqueued.get()


@pytest.fixture
async def outbox() -> AsyncIterator[Outbox]:
    outbox = Outbox()
    async with outbox.deliveries:
        yield outbox


async def test_a_message_that_is_on_its_way_is_not_sent_twice(outbox: Outbox) -> None:
    outbox.send("first", record(1))
    outbox.send("again", record(1))
    await asyncio.sleep(0)
    outbox.gate.set()
    assert await outbox.next_enqueued() == ("team/job", 0.0)
    assert (outbox.begun, len(outbox.deliveries)) == (["first"], 0)


async def test_once_it_has_ended_the_same_message_may_be_sent_again(outbox: Outbox) -> None:
    outbox.gate.set()
    for name in ("first", "again"):
        outbox.send(name, record(1))
        await outbox.next_enqueued()
    assert outbox.begun == ["first", "again"]


async def test_a_newer_record_replaces_the_one_on_its_way(outbox: Outbox) -> None:
    outbox.send("old", record(1))
    await asyncio.sleep(0)
    outbox.send("new", record(2))
    await asyncio.sleep(0)
    outbox.gate.set()
    assert await outbox.next_enqueued() == ("team/job", 0.0)
    assert (outbox.begun, outbox.cancelled) == (["old", "new"], ["old"])
    assert (outbox.enqueued.empty(), len(outbox.deliveries)) == (True, 0)


async def test_a_notice_and_a_record_of_a_job_are_on_their_way_together(outbox: Outbox) -> None:
    outbox.send("record", record(1))
    outbox.send("notice", Notice(id="n", deadline=1.0, job_uid="job", leave=True))
    outbox.send("other", record(1), uid="other")
    await asyncio.sleep(0)
    assert (outbox.begun, outbox.cancelled) == (["record", "notice", "other"], [])


async def test_a_delivery_that_crashes_is_tried_again_and_ends_no_other(outbox: Outbox) -> None:
    async def crash() -> float:
        raise RuntimeError("a bug")

    outbox.send("other", record(1), uid="other")
    outbox.deliveries.start(uid="job", key="team/job", message=record(1), deliver=crash)
    assert await outbox.next_enqueued() == ("team/job", CRASHED_RETRY_SECONDS)
    outbox.gate.set()
    assert await outbox.next_enqueued() == ("team/other", 0.0)


async def test_what_is_on_its_way_ends_with_the_leader() -> None:
    outbox = Outbox()
    async with outbox.deliveries:
        outbox.send("record", record(1))
        await asyncio.sleep(0)
    assert (outbox.cancelled, outbox.enqueued.empty()) == (["record"], True)
