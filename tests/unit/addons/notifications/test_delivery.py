"""When a message is tried again, and when it is given up."""

from __future__ import annotations

import asyncio

import pytest

from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline_addons.notifications.delivery import (
    LONGEST_PAUSE_SECONDS,
    MOST_AGE_SECONDS,
    ChannelWorker,
    DeliveryError,
)
from drumline_addons.notifications.record import PendingMessage
from tests.unit.addons.notifications.jobs import a_change, at

AWAY = DeliveryError("HTTP status 503")


class Post:
    """A worker, its clock, and a channel that refuses for these reasons, one after the other."""

    def __init__(self) -> None:
        self.now = at("11:00:00")
        self.refuses: list[DeliveryError] = []
        self.tried: list[str] = []
        self.settled: list[str] = []
        self.metrics = NotifierMetrics()
        self.worker = ChannelWorker(
            "slack",
            sender=self,
            settled=self._settle,
            metrics=self.metrics.channel("slack", kind="slack"),
            clock=lambda: self.now,
        )

    async def send(self, message: PendingMessage) -> None:
        self.tried.append(message.change.id)
        if self.refuses:
            raise self.refuses.pop(0)

    def _settle(self, message: PendingMessage) -> None:
        self.settled.append(message.change.id)

    def add(self, *ids: str) -> None:
        for each in ids:
            change = a_change(id=each, at=self.now)
            self.worker.add(PendingMessage(change=change, channel="slack"))


@pytest.fixture
def post() -> Post:
    return Post()


async def until_idle(post: Post) -> float | None:
    while (pause := await post.worker.step()) == 0.0:
        pass
    return pause


async def test_messages_go_in_their_order(post: Post) -> None:
    post.add("a", "b", "c")
    assert await until_idle(post) is None
    assert post.tried == post.settled == ["a", "b", "c"]


async def test_a_channel_that_is_away_is_tried_after_longer_and_longer_pauses(post: Post) -> None:
    post.add("a")
    pauses: list[float | None] = []
    for _ in range(11):
        post.refuses = [AWAY]
        pauses.append(await until_idle(post))
        post.now += pauses[-1] or 0.0
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, LONGEST_PAUSE_SECONDS]
    assert post.worker.problem == "channel slack: HTTP status 503"
    assert await until_idle(post) is None
    assert post.settled == ["a"]
    assert post.worker.problem is None


async def test_nothing_is_sent_while_the_channel_pauses(post: Post) -> None:
    post.add("a")
    post.refuses = [DeliveryError("HTTP status 429", after_seconds=30.0)]
    assert await until_idle(post) == 30.0
    post.add("b")
    post.now += 29.0
    assert await until_idle(post) == 1.0
    assert post.tried == ["a"]
    post.now += 1.0
    assert await until_idle(post) is None
    assert post.tried == ["a", "a", "b"]


async def test_a_message_that_fails_lets_the_next_go_first(post: Post) -> None:
    post.add("a", "b")
    post.refuses = [DeliveryError("HTTP status 500")]
    post.now += await until_idle(post) or 0.0
    assert await until_idle(post) is None
    assert post.tried == ["a", "b", "a"]


async def test_what_is_refused_for_good_is_given_up_and_holds_up_nobody(post: Post) -> None:
    post.add("a", "b")
    post.refuses = [DeliveryError("HTTP status 400", is_final=True)]
    assert await until_idle(post) is None
    assert post.tried == post.settled == ["a", "b"]


async def test_a_message_is_given_up_six_hours_after_its_change(post: Post) -> None:
    post.add("a")
    post.now += MOST_AGE_SECONDS
    post.refuses = [AWAY]
    await until_idle(post)
    assert (post.tried, post.settled) == (["a"], [])
    post.now += 1.0
    assert await until_idle(post) is None
    assert (post.tried, post.settled) == (["a"], ["a"])


async def test_what_becomes_of_messages_is_counted(post: Post) -> None:
    post.add("a", "b")
    post.refuses = [AWAY, DeliveryError("HTTP status 400", is_final=True)]
    post.now += await until_idle(post) or 0.0
    post.now += await until_idle(post) or 0.0
    labels = {"channel": "slack", "kind": "slack"}
    counts = {
        name: post.metrics.registry.get_sample_value(f"drumline_notifier_{name}_total", labels)
        for name in ("messages_sent", "attempts_failed", "messages_dropped")
    }
    assert counts == {"messages_sent": 1, "attempts_failed": 2, "messages_dropped": 1}


class Gate(Post):
    """A channel that accepts when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.opened = asyncio.Event(), asyncio.Event()

    async def send(self, message: PendingMessage) -> None:
        await super().send(message)
        self.asked.set()
        await self.opened.wait()


async def test_an_attempt_under_way_ends_before_the_worker_does() -> None:
    gate = Gate()
    gate.add("a", "b")
    running = asyncio.create_task(gate.worker.run())
    await gate.asked.wait()
    gate.worker.finish()
    gate.opened.set()
    await running
    assert gate.settled == ["a"]


async def test_a_worker_that_has_nothing_to_do_ends_too(post: Post) -> None:
    running = asyncio.create_task(post.worker.run())
    await asyncio.sleep(0)
    post.worker.finish()
    await running
    assert post.tried == []
