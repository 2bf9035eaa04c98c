"""One message for each change, over restarts, storms and a record that cannot be written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from drumline.kube.errors import KubeError, Unreachable
from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline_addons.notifications import notifier as module
from drumline_addons.notifications.channels import parsed
from drumline_addons.notifications.delivery import MOST_AGE_SECONDS, ChannelWorker, DeliveryError
from drumline_addons.notifications.jobs import NotifiableJob
from drumline_addons.notifications.notifier import Notifier
from drumline_addons.notifications.record import (
    MOST_JOBS,
    MOST_PENDING,
    MOST_PENDING_OF_A_JOB,
    MOST_PENDING_OF_A_NAMESPACE,
    PendingMessage,
    SentRecord,
    packed,
    unpacked,
)
from tests.unit.addons.notifications.jobs import (
    added,
    at,
    deleted,
    failed,
    idle,
    job,
    modified,
    preempted,
    running,
    succeeded,
)

SETTINGS = parsed(
    json.dumps(
        {
            "channels": {
                "all": {"webhook": {"url": "https://example.com"}},
                "own": {"jobsMayChoose": True, "webhook": {"url": "https://example.com"}},
            },
            "routes": [{"channels": ["all"]}],
        }
    ).encode()
)


class Office:
    """A notifier, its channels and its record, which may all be replaced or away."""

    def __init__(self) -> None:
        self.now = at("08:30:00")
        self.kept: bytes | None = None
        self.writes = 0
        self.fails: KubeError | None = None
        self.refuses = False
        self.sent: list[tuple[str, str, str]] = []
        """Channel, job and kind."""

    async def write(self, record: SentRecord) -> None:
        if self.fails is not None:
            raise self.fails
        self.writes += 1
        self.kept = packed(record)

    async def send(self, message: PendingMessage) -> None:
        if self.refuses:
            raise DeliveryError("HTTP status 503")
        change = message.change
        self.sent.append((message.channel, change.name, str(change.kind)))

    def open(self, present: Sequence[NotifiableJob] = ()) -> None:
        """A process begins: it reads the record, then lists the jobs."""
        self.workers: dict[str, ChannelWorker] = {}
        self.metrics = NotifierMetrics()
        self.notifier = Notifier(
            SETTINGS,
            keeper=self,
            record=None if self.kept is None else unpacked(self.kept),
            workers=self.workers,
            metrics=self.metrics,
            clock=lambda: self.now,
        )
        self.workers |= {
            name: ChannelWorker(
                name,
                sender=self,
                settled=self.notifier.settled,
                metrics=self.metrics.channel(name, kind=channel.kind),
                clock=lambda: self.now,
            )
            for name, channel in SETTINGS.channels.items()
        }
        for each in present:
            self.notifier.on_event(added(each))

    async def settle(self) -> None:
        """One round of everything."""
        await self.notifier.step()
        await self.deliver()
        await self.notifier.save()

    async def deliver(self) -> None:
        for worker in self.workers.values():
            while await worker.step() == 0.0:
                pass

    @property
    def kinds(self) -> list[str]:
        return [kind for channel, _, kind in self.sent if channel == "all"]


@pytest.fixture
def office() -> Office:
    return Office()


async def test_a_first_start_says_nothing_about_the_past(office: Office) -> None:
    office.open([running(), failed(uid="u-2"), preempted(uid="u-3")])
    await office.settle()
    assert office.sent == []
    office.notifier.on_event(modified(succeeded()))
    await office.settle()
    assert office.sent == [("all", "llama", "Finished")]


async def test_a_change_is_sent_once_however_often_it_is_seen_and_over_restarts(
    office: Office,
) -> None:
    office.open()
    await office.settle()
    for _ in range(3):
        office.notifier.on_event(modified(running()))
    await office.settle()
    for _ in range(3):
        office.open([running()])
        await office.settle()
    assert office.sent == [("all", "llama", "Started")]


async def test_what_happens_while_nobody_looks_is_sent_at_the_next_start(office: Office) -> None:
    office.open([running()])
    await office.settle()
    office.open([failed(), running(uid="u-2", name="new")])
    office.now = at("11:30:00")
    await office.settle()
    assert sorted(office.sent) == [("all", "llama", "Failed"), ("all", "new", "Started")]


async def test_what_is_older_than_any_message_may_be_is_not_sent(office: Office) -> None:
    office.open()
    await office.settle()
    office.open([failed()])
    office.now = at("11:00:00") + MOST_AGE_SECONDS + 1.0
    await office.notifier.step()
    assert office.kept is not None
    assert unpacked(office.kept).pending == []


async def test_a_message_on_its_way_survives_a_restart(office: Office) -> None:
    office.open([running()])
    await office.settle()
    office.refuses = True
    office.notifier.on_event(modified(failed()))
    await office.settle()
    assert office.sent == []
    office.refuses = False
    office.open([failed()])
    await office.settle()
    assert office.kinds == ["Failed"]
    office.open([])  # the job is gone by now
    await office.settle()
    assert office.kinds == ["Failed"]


async def test_a_message_of_a_job_that_is_gone_is_sent_too(office: Office) -> None:
    office.open([running()])
    await office.settle()
    office.refuses = True
    office.notifier.on_event(modified(succeeded()))
    await office.settle()
    office.refuses = False
    office.open([])
    await office.settle()
    assert office.kinds == ["Finished"]
    assert office.kept is not None
    assert unpacked(office.kept).known == {}


async def test_nothing_is_sent_that_is_not_recorded(office: Office) -> None:
    office.open([running()])
    await office.settle()
    office.fails = Unreachable("away")
    office.notifier.on_event(modified(failed()))
    for _ in range(2):
        with pytest.raises(Unreachable):
            await office.notifier.step()
        await office.deliver()
    assert office.sent == []
    office.fails = None
    await office.settle()
    assert office.kinds == ["Failed"]


async def test_a_job_that_ends_and_is_gone_at_once_is_not_missed(office: Office) -> None:
    office.open([running()])
    await office.settle()
    office.notifier.on_event(deleted(succeeded()))
    office.notifier.on_event(deleted(running(uid="u-9")))
    await office.settle()
    assert office.kinds == ["Finished"]
    assert office.kept is not None
    assert unpacked(office.kept).known == {}


async def test_quiet_rounds_write_nothing(office: Office) -> None:
    office.open([running(), job("Suspended", uid="u-2"), job("Pending", uid="u-3")])
    await office.settle()
    before = office.writes
    for _ in range(5):
        office.now += 15.0
        office.notifier.on_event(modified(running(step=int(office.now))))
        await office.settle()
    assert office.writes == before == 1


async def test_waiting_too_long_needs_no_event(office: Office) -> None:
    office.open()
    await office.settle()
    office.notifier.on_event(added(job("Pending", reason="InvalidConfig")))
    office.now = at("08:40:00")
    await office.settle()
    await office.settle()
    assert office.kinds == ["Stuck"]


async def test_a_job_chooses_a_channel_besides_the_routes(office: Office) -> None:
    office.open()
    await office.settle()
    office.notifier.on_event(added(running(notify="own,all,nowhere")))
    await office.settle()
    assert office.sent == [("all", "llama", "Started"), ("own", "llama", "Started")]


async def test_a_storm_is_bounded_and_what_is_left_out_does_not_come_later(office: Office) -> None:
    office.open()
    await office.settle()
    office.refuses = True
    for number in range(MOST_PENDING + 50):
        office.notifier.on_event(added(running(uid=f"u-{number}", namespace=f"team-{number % 3}")))
    await office.settle()
    assert office.kept is not None
    assert len(unpacked(office.kept).pending) == MOST_PENDING
    office.refuses = False
    office.now += 10.0
    await office.settle()
    assert len(office.sent) == MOST_PENDING


async def test_a_namespace_full_of_jobs_leaves_room_for_others(office: Office) -> None:
    office.open()
    await office.settle()
    office.refuses = True
    for number in range(MOST_PENDING_OF_A_NAMESPACE + 1):
        office.notifier.on_event(added(running(uid=f"u-{number}")))
    office.notifier.on_event(added(running(uid="u-other", namespace="other")))
    await office.settle()
    assert office.kept is not None
    pending = [message.change.namespace for message in unpacked(office.kept).pending]
    assert pending.count("research") == MOST_PENDING_OF_A_NAMESPACE
    assert pending.count("other") == 1


async def test_a_job_whose_outlook_changes_all_the_time_leaves_room_for_others(
    office: Office,
) -> None:
    office.open()
    await office.settle()
    office.refuses = True
    for minute in range(10, 50):
        office.now = at(f"10:{minute}:00")
        office.notifier.on_event(modified(running(since=f"10:{minute}:00")))
        office.notifier.on_event(modified(job("Suspended")))
    office.notifier.on_event(added(running(uid="u-2", name="other")))
    await office.settle()
    assert office.kept is not None
    names = [message.change.name for message in unpacked(office.kept).pending]
    assert (names.count("llama"), names.count("other")) == (MOST_PENDING_OF_A_JOB, 1)


async def test_idle_messages_are_an_hour_apart_over_restarts_and_need_no_event(
    office: Office,
) -> None:
    office.open([running()])
    office.now = at("10:00:00")
    await office.settle()
    for minute in range(40):
        office.now = at(f"10:{minute:02}:00")
        office.notifier.on_event(modified(idle(since=f"10:{minute:02}:00")))
        await office.settle()
        office.notifier.on_event(modified(running()))
        await office.settle()
    assert office.kinds == ["Idle"]
    office.open([idle(since="10:40:00")])
    await office.settle()
    assert office.kinds == ["Idle"]
    office.now = at("11:00:00")
    await office.settle()
    await office.settle()
    assert office.kinds == ["Idle", "Idle"]


async def test_more_jobs_than_can_be_remembered_are_left_out(office: Office) -> None:
    office.open()
    await office.settle()
    for number in range(MOST_JOBS + 10):
        of_job = {"uid": f"u-{number}", "namespace": f"team-{number % 64}"}
        office.notifier.on_event(added(job("Pending", **of_job)))
    office.notifier.on_event(added(running(uid="too-many", namespace="team-0")))
    await office.settle()
    assert office.kept is not None
    assert 0.95 * MOST_JOBS < len(unpacked(office.kept).known) < MOST_JOBS
    assert office.sent == []


async def test_jobs_of_one_namespace_leave_places_for_others(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may create any number of suspended jobs, and each tick looks at all of them."""
    left_out: list[str] = []

    class Recorder:
        def warning(self, event: str, **fields: Any) -> None:
            assert event == "job_left_out"
            left_out.append(fields["job"])

        def info(self, *_: Any, **__: Any) -> None:
            pass

    monkeypatch.setattr(module, "log", Recorder())
    office.open()
    await office.settle()
    for number in range(MOST_JOBS):
        office.notifier.on_event(added(job("Suspended", uid=f"u-{number}", namespace="many")))
    await office.settle()
    await office.settle()
    assert len(left_out) == MOST_JOBS // 4
    office.notifier.on_event(added(running(uid="mine", namespace="team-b")))
    await office.settle()
    assert office.kinds == ["Started"]


async def test_metrics_say_what_waits_for_how_long_and_what_was_dropped(office: Office) -> None:
    def value(name: str) -> float | None:
        labels = {"channel": "all", "kind": "webhook"}
        return office.metrics.registry.get_sample_value(f"drumline_notifier_{name}", labels)

    office.open()
    await office.settle()
    assert value("oldest_message_seconds") == value("pending_messages") == 0
    office.refuses, office.now = True, at("11:00:00")
    for number in range(MOST_PENDING + 3):
        office.notifier.on_event(added(running(uid=f"u-{number}", namespace=f"team-{number % 3}")))
    await office.settle()
    waited = value("oldest_message_seconds")
    office.now += 100.0
    assert waited
    assert value("oldest_message_seconds") == waited + 100.0
    assert value("pending_messages") == MOST_PENDING
    assert value("messages_dropped_total") == 3


async def test_a_record_that_cannot_be_written_is_counted(office: Office) -> None:
    office.open()
    office.fails = Unreachable("away")
    running_notifier = asyncio.create_task(office.notifier.run())
    while office.notifier.problem is None:  # noqa: ASYNC110 - as a probe reads it
        await asyncio.sleep(0)
    running_notifier.cancel()
    failures = "drumline_notifier_record_failures_total"
    assert office.metrics.registry.get_sample_value(failures) == 1
