"""What is written when, and what becomes of it when the storage is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from obstore.store import MemoryStore

from drumline.scope import InstallationScope
from drumline.telemetry.archiver_metrics import ArchiverMetrics
from drumline_addons.archive import archiver as archivers
from drumline_addons.archive.archiver import (
    LINES_PAUSE_SECONDS,
    MOST_EARLIER_LOGS,
    REFRESH_SECONDS,
    SETTLE_SECONDS,
    Archiver,
)
from drumline_addons.archive.documents import ArchivableJob, Json
from drumline_addons.archive.layout import earlier_logs
from drumline_addons.archive.reading import read_ended
from drumline_addons.archive.store import ArchiveError, ArchiveStore
from tests.unit.addons.archive.jobs import added, deleted, job, modified

BEGIN = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
FINISHED = {"phase": "Succeeded", "finishedAt": "2026-11-23T11:59:00Z"}
EVENT: Json = {"kind": "Event", "reason": "Finished"}
ENDED = "ended/2026-11-23/research/llama/u-1.json"


class Flaky(ArchiveStore):
    """An archive in memory whose storage can be away."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), name="memory")
        self.away = False
        self.refuses = "nothing/"
        self.puts: list[str] = []

    async def put(self, path: str, body: bytes) -> None:
        if self.away or path.startswith(self.refuses):
            raise ArchiveError("away")
        self.puts.append(path)
        await super().put(path, body)

    async def read(self, path: str) -> dict[str, Any]:
        return json.loads(await self.get(path))

    async def paths(self) -> list[str]:
        return sorted(
            [file.path for prefix in ("live/", "ended/") for file in await self.list(prefix)]
        )


class Desk:
    """An archiver and its clock."""

    def __init__(
        self, store: Flaky, *, keep_days: int = 30, namespaces: tuple[str, ...] = ()
    ) -> None:
        self.now = BEGIN
        self.store = store
        self.present: list[ArchivableJob] = []
        self.metrics = ArchiverMetrics()
        self.archiver = Archiver(
            store,
            read_events=self._events,
            read_logs=self._logs,
            keep_days=keep_days,
            covers=InstallationScope(namespaces=namespaces).covers,
            metrics=self.metrics,
            clock=lambda: self.now,
        )
        self.lines = b""

    async def _events(self, job: ArchivableJob) -> Sequence[Json]:
        assert job.uid == "u-1"
        return [EVENT]

    async def _logs(self, _job: ArchivableJob) -> bytes:
        return self.lines

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.archiver.step(lambda: self.present)


@pytest.fixture
def store() -> Flaky:
    return Flaky()


@pytest.fixture
def desk(store: Flaky) -> Desk:
    return Desk(store)


async def test_a_job_that_ends_is_archived_with_its_events(desk: Desk, store: Flaky) -> None:
    runs = job()
    desk.archiver.on_event(added(runs))
    await desk.after(SETTLE_SECONDS)
    assert await store.paths() == ["live/u-1.json"]
    desk.archiver.on_event(modified(runs, job(version=2, **FINISHED)))
    await desk.after(SETTLE_SECONDS)
    assert await store.paths() == [ENDED]
    kept = await store.read(ENDED)
    assert kept["items"][0]["status"]["phase"] == "Succeeded"
    assert kept["items"][1] == EVENT


async def test_the_last_lines_of_its_pods_are_kept_beside_it(desk: Desk, store: Flaky) -> None:
    desk.lines = b"==> llama-0-g1 on a <==\nstep 400\n"
    desk.archiver.on_event(added(job(**FINISHED)))
    await desk.after(SETTLE_SECONDS)
    assert await store.get(ENDED.replace(".json", ".log")) == desk.lines
    desk.now += 31 * 86_400
    await Desk(store, keep_days=30).after(31 * 86_400)
    assert await store.paths() == []


INCIDENT = {"generation": 3, "attempt": 0}


async def test_the_last_lines_are_kept_at_an_incident_before_the_pods_go(
    desk: Desk, store: Flaky
) -> None:
    runs = job(generation=2)
    desk.archiver.on_event(added(runs))
    await desk.after(SETTLE_SECONDS)
    desk.lines = b"==> llama-0-g2 on a <==\nstep 40\n"
    hurt = job(version=2, generation=2, phase="Recovering", lastIncident=INCIDENT)
    desk.archiver.on_event(modified(runs, hurt))
    await desk.after(0.0)
    at = int(desk.now)
    assert await store.get(f"logs/research/u-1/2026-11-23.2.{at}.log") == desk.lines
    again = job(version=3, generation=3, phase="Running", lastIncident=INCIDENT)
    desk.archiver.on_event(modified(hurt, again))
    await desk.after(0.0)
    assert len(await store.list("logs/")) == 1


@pytest.mark.parametrize("phase", ["Pending", "Suspended"])
async def test_the_last_lines_are_kept_when_a_job_gives_its_pods_up(
    desk: Desk, store: Flaky, phase: str
) -> None:
    desk.lines = b"==> llama-0-g2 on a <==\nstep 40\n"
    runs = job(generation=2)
    desk.archiver.on_event(modified(runs, job(version=2, generation=2, phase=phase)))
    await desk.after(0.0)
    assert len(await store.list("logs/")) == 1
    desk.archiver.on_event(modified(runs, job(version=3, generation=2, **FINISHED)))
    await desk.after(0.0)
    assert len(await store.list("logs/")) == 1


async def test_a_program_that_fails_all_the_time_costs_a_read_a_minute_and_bounded_space(
    desk: Desk, store: Flaky
) -> None:
    last = job(generation=2)
    desk.lines = b"==> llama-0-g2 on a <==\nstep 40\n"
    for attempt in range(1, 60):
        new = job(generation=2, lastIncident={"generation": 2, "attempt": attempt})
        desk.archiver.on_event(modified(last, new))
        await desk.after(12.0)
        last = new
    assert sum(path.startswith("logs/") for path in store.puts) == 12  # 59 faults in 708 s
    await desk.after(LINES_PAUSE_SECONDS)
    kept = earlier_logs(file.path for file in await store.list("logs/"))
    assert len(kept) == MOST_EARLIER_LOGS
    assert kept[-1].at > desk.now - 2 * LINES_PAUSE_SECONDS
    desk.now += 40 * 86_400
    await desk.after(0.0)
    assert await store.list("logs/") == []


async def test_lines_that_could_not_be_written_are_still_due(desk: Desk, store: Flaky) -> None:
    desk.lines = b"==> llama-0-g2 on a <==\nstep 40\n"
    store.away = True
    desk.archiver.on_event(modified(job(), job(version=2, phase="Pending")))
    with pytest.raises(ArchiveError):
        await desk.after(0.0)
    store.away = False
    await desk.after(0.0)
    assert len(await store.list("logs/")) == 1


async def test_lines_that_are_refused_keep_no_document_from_being_written(
    desk: Desk, store: Flaky
) -> None:
    desk.lines = b"==> llama-0-g2 on a <==\nstep 40\n"
    store.refuses = "logs/"
    desk.archiver.on_event(modified(job(), job(version=2, phase="Pending")))
    with pytest.raises(ArchiveError):
        await desk.after(SETTLE_SECONDS)
    assert await store.paths() == ["live/u-1.json"]


async def test_what_has_ended_is_written_once(desk: Desk, store: Flaky) -> None:
    ended = job(**FINISHED)
    desk.archiver.on_event(added(ended))
    await desk.after(SETTLE_SECONDS)
    desk.archiver.on_event(deleted(ended))
    await desk.after(SETTLE_SECONDS)
    again = Desk(store)
    again.archiver.on_event(added(ended))
    await again.after(SETTLE_SECONDS)
    assert store.puts == [ENDED]
    assert "deletedAt" not in (await store.read(ENDED))["archive"]


async def test_a_burst_of_changes_is_one_write(desk: Desk, store: Flaky) -> None:
    last = job()
    desk.archiver.on_event(added(last))
    for version in range(2, 50):
        new = job(version=version, reason=f"R{version}")
        desk.archiver.on_event(modified(last, new))
        last = new
    await desk.after(SETTLE_SECONDS)
    assert store.puts == ["live/u-1.json"]
    assert (await store.read("live/u-1.json"))["items"][0]["status"]["reason"] == "R49"


async def test_figures_of_a_running_job_wait_for_their_turn(desk: Desk, store: Flaky) -> None:
    first, second = job(step=1), job(version=2, step=2)
    desk.archiver.on_event(added(first))
    await desk.after(SETTLE_SECONDS)
    desk.archiver.on_event(modified(first, second))
    await desk.after(REFRESH_SECONDS - 1)
    assert len(store.puts) == 1
    await desk.after(1)
    assert (await store.read("live/u-1.json"))["items"][0]["status"]["step"] == 2


async def test_a_job_that_is_deleted_while_it_runs_is_archived_as_deleted(
    desk: Desk, store: Flaky
) -> None:
    desk.archiver.on_event(added(job()))
    await desk.after(SETTLE_SECONDS)
    desk.archiver.on_event(deleted(job(step=7)))
    await desk.after(SETTLE_SECONDS)
    assert await store.paths() == [ENDED]
    kept = await store.read(ENDED)
    assert kept["archive"]["deletedAt"] == "2026-11-23T12:00:05Z"
    assert kept["items"][0]["status"]["step"] == 7


async def test_a_job_that_went_while_nobody_watched_is_archived_at_the_next_start(
    desk: Desk, store: Flaky
) -> None:
    desk.archiver.on_event(added(job()))
    await desk.after(SETTLE_SECONDS)
    await Desk(store).after(0)
    (ended,) = (await read_ended(store, since=None)).jobs
    assert ended.deleted_at is not None
    assert ended.job.status.phase == "Deleted"
    assert [path for path in await store.paths() if path.startswith("live/")] == []


async def test_what_another_archiver_writes_to_the_same_storage_is_left_alone(
    desk: Desk, store: Flaky
) -> None:
    desk.archiver.on_event(added(job()))
    await desk.after(SETTLE_SECONDS)
    await Desk(store, namespaces=("elsewhere",)).after(0)
    assert await store.paths() == ["live/u-1.json"]


async def test_a_job_that_is_still_there_after_a_restart_is_left_alone(
    desk: Desk, store: Flaky
) -> None:
    desk.archiver.on_event(added(job()))
    await desk.after(SETTLE_SECONDS)
    again = Desk(store)
    again.present = [job()]
    await again.after(0)
    assert await store.paths() == ["live/u-1.json"]


async def test_nothing_is_lost_while_the_storage_is_away(desk: Desk, store: Flaky) -> None:
    store.away = True
    for number in range(20):
        desk.archiver.on_event(added(job(uid=f"u-{number}")))
    with pytest.raises(ArchiveError):
        await desk.after(SETTLE_SECONDS)
    store.away = False
    await desk.after(0)
    assert len(await store.paths()) == 20


async def test_a_storage_that_is_away_is_tried_again_and_said(
    store: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archivers, "_FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(archivers, "SETTLE_SECONDS", 0.0)
    desk = Desk(store)
    store.away = True
    desk.archiver.on_event(added(job(**FINISHED)))
    task = asyncio.create_task(desk.archiver.run(lambda: desk.present))
    while desk.archiver.problem is None:  # noqa: ASYNC110 - as a probe reads it
        await asyncio.sleep(0)
    assert desk.archiver.problem == "away"
    store.away = False
    while desk.archiver.problem is not None:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    assert await store.paths() == [ENDED]
    task.cancel()


async def test_the_last_changes_are_written_when_the_process_ends(desk: Desk, store: Flaky) -> None:
    await desk.after(0)
    desk.archiver.on_event(added(job(**FINISHED)))
    await desk.archiver.flush()
    assert await store.paths() == [ENDED]


async def test_a_process_that_ends_before_it_knew_the_archive_writes_nothing_again(
    desk: Desk, store: Flaky
) -> None:
    """The events about a job are gone after an hour: its document has more than can be read now."""
    desk.archiver.on_event(added(job(**FINISHED)))
    await desk.after(SETTLE_SECONDS)
    again = Desk(store)
    again.archiver.on_event(added(job(**FINISHED)))
    await again.archiver.flush()
    assert store.puts == [ENDED]


async def test_old_documents_are_deleted_and_not_written_again(store: Flaky) -> None:
    old = job(phase="Succeeded", finishedAt="2026-10-20T00:00:00Z")
    generous = Desk(store, keep_days=1_000_000_000)  # more than a calendar has
    generous.archiver.on_event(added(old))
    await generous.after(SETTLE_SECONDS)
    assert await store.paths() == ["ended/2026-10-20/research/llama/u-1.json"]
    strict = Desk(store, keep_days=30)
    await strict.after(0)
    assert await store.paths() == []
    again = Desk(store, keep_days=30)
    again.archiver.on_event(added(old))
    await again.after(SETTLE_SECONDS)
    assert await store.paths() == []


async def test_a_document_that_cannot_be_read_stops_nothing(desk: Desk, store: Flaky) -> None:
    await store.put("live/broken.json", b"{")
    desk.archiver.on_event(added(job(**FINISHED)))
    await desk.after(SETTLE_SECONDS)
    assert await store.paths() == [ENDED, "live/broken.json"]


async def test_metrics_say_what_is_due_and_since_when(desk: Desk, store: Flaky) -> None:
    def value(name: str, **labels: str) -> float | None:
        return desk.metrics.registry.get_sample_value(f"drumline_archiver_{name}", labels)

    desk.archiver.on_event(added(job(**FINISHED)))
    store.away = True
    assert (value("due_jobs"), value("overdue_seconds")) == (1, 0)
    with pytest.raises(ArchiveError):
        await desk.after(SETTLE_SECONDS + 60.0)
    assert (value("due_jobs"), value("overdue_seconds")) == (1, 60)
    assert value("documents_written_total", kind="ended") == 0
    store.away = False
    await desk.after(1.0)
    assert (value("due_jobs"), value("overdue_seconds")) == (0, 0)
    assert value("documents_written_total", kind="ended") == 1
