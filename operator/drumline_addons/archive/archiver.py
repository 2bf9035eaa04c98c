"""Write jobs to the archive when they end, and every few minutes before that.

Changes from the informer are recorded immediately and written later. A burst of changes is
therefore one write, and an unavailable storage delays only the archive. Failed writes stay due. A
job that is deleted before it ended is archived in its last state. This also works if the archiver
was down: its document below `live` remains, and the next start finds that the object is gone.

Log lines of pods are read at the end, and when a job has an incident or leaves its pods. These pods
are deleted within their grace period, with their lines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from drumline.kube.codec import Undecodable
from drumline.kube.store import Change, Event
from drumline.telemetry import logs
from drumline.telemetry.archiver_metrics import ArchiverMetrics
from drumline_addons.archive.documents import ArchivableJob, Json, document, with_deletion
from drumline_addons.archive.layout import (
    ENDED,
    LIVE,
    LOGS,
    EarlierLogs,
    EndedPath,
    day_of,
    earlier_logs,
    ended_day,
    live_path,
    live_uid,
    logs_of,
)
from drumline_addons.archive.store import ArchiveError, ArchiveStore, StoredFile

log = logs.get("drumline_addons.archive.archiver")

SETTLE_SECONDS: Final = 5.0
"""Delay of a write. The next changes and the events about a change arrive immediately after it."""
REFRESH_SECONDS: Final = 300.0
"""Maximum age of a running job's figures in the archive."""
PRUNE_SECONDS: Final = 6 * 3600.0
LINES_PAUSE_SECONDS: Final = 60.0
"""Minimum time between two reads of the lines of a running job, whose program may fail
repeatedly."""
MOST_EARLIER_LOGS: Final = 8
"""Maximum per job, the latest: the number of incidents that its status keeps."""
# Pauses double from 2 s to a minute, so an outage of hours causes one attempt a minute.
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
# A bucket takes many requests at once. Eight keep a mass end of jobs from taking all memory.
_WRITES_AT_ONCE: Final = 8

ReadEvents = Callable[[ArchivableJob], Awaitable[Sequence[Json]]]
ReadLogs = Callable[[ArchivableJob], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """Pending writes of a job."""

    job: ArchivableJob
    at: float
    deleted_at: float | None = None

    @property
    def ended_at(self) -> float | None:
        """Return the time at which the job ended."""
        return _moment(self.job.finished_at) or self.deleted_at


class Archiver:
    """Archiver for one event loop.

    Args:
        store: where documents go.
        read_events: the events about a job; none where they cannot be read.
        read_logs: the last lines of its pods; None: they are not kept.
        keep_days: documents of jobs that ended earlier are deleted.
        covers: whether jobs of a namespace are seen; those of others may be archived beside.
        metrics: counts what is written and refused; its gauges look at what is due.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: ArchiveStore,
        *,
        read_events: ReadEvents,
        read_logs: ReadLogs | None = None,
        keep_days: int,
        covers: Callable[[str], bool] = lambda _: True,
        metrics: ArchiverMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._read_events = read_events
        self._read_logs = read_logs
        self._keep_days = keep_days
        self._covers = covers
        self._metrics = metrics
        self._clock = clock
        # UIDs, because a job that is created again under its name is another job.
        self._due: dict[str, _Due] = {}
        """Jobs by UID."""
        self._lines_due: dict[str, _Due] = {}
        """Jobs by UID whose lines are read soon, because their pods may be deleted."""
        self._lines_at: dict[str, float] = {}
        """Time of the last read of a running job's lines, by UID."""
        self._written_at: dict[str, float] = {}
        """Paths by UID, for jobs that have not ended."""
        self._ended: set[str] = set()
        """UIDs below `ended`."""
        self._changed = asyncio.Event()
        self._settled = False
        self._prune_at = 0.0
        self._failures = 0
        self.problem: str | None = None
        """Last error. None after the storage answers again."""
        metrics.watch_due(jobs=lambda: len(self._due), overdue=self._overdue_seconds)

    def on_event(self, event: Event[ArchivableJob]) -> None:
        """Record a change of a job. The informer calls it."""
        job, now = event.view, self._clock()
        # Events repeat after a new list. An archived job must not be written again.
        if job.uid in self._ended or self._is_too_old(_moment(job.finished_at)):
            return
        # The last state is all that exists: the object is gone when the write happens.
        if event.change is Change.DELETED and not job.finished_at:
            self._note(_Due(job=job, at=now + SETTLE_SECONDS, deleted_at=now))
            return
        # Lines first: pods that are released are deleted within their grace period.
        if self._read_logs is not None and _leaves_lines(event.previous, job):
            last = self._lines_at.get(job.uid, 0.0)
            self._lines_due[job.uid] = _Due(job=job, at=max(now, last + LINES_PAUSE_SECONDS))
        news = event.previous is None or event.previous.news != job.news
        # Phase, reason and incidents are written at once, progress only every five minutes.
        if job.finished_at or news:
            at = now + SETTLE_SECONDS
        else:
            at = self._written_at.get(job.uid, now) + REFRESH_SECONDS
        # The earlier of both times wins, so a stream of changes cannot postpone a write forever.
        known = self._due.get(job.uid)
        self._note(_Due(job=job, at=min(at, known.at) if known is not None else at))

    async def run(self, jobs: Callable[[], Iterable[ArchivableJob]]) -> None:
        """Write until the task is cancelled.

        Args:
            jobs: jobs of the cluster, as last seen.
        """
        while True:
            # A step may be repeated at any point, because failed writes stay due.
            try:
                await self.step(jobs)
                self._failures, self.problem = 0, None
                pause = self._next_at() - self._clock()
            except ArchiveError as error:
                self._failures += 1
                self._metrics.failures.inc()
                # The count is reset by the next success, so each outage starts with a short pause.
                pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**self._failures)
                self.problem = str(error)
                log.warning("archive_refused", why=str(error), again_in_seconds=pause)
                await asyncio.sleep(pause)
                continue
            # No await since `_next_at`: a change is either part of the pause or sets the event
            # again.
            self._changed.clear()
            try:
                # A negative pause means that something became due during the step.
                async with asyncio.timeout(max(0.0, pause)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def step(self, jobs: Callable[[], Iterable[ArchivableJob]]) -> None:
        """Write everything that is due.

        Raises:
            ArchiveError: the storage rejected a write. It stays due.
        """
        # The archive is listed once. Without the list, ended jobs would be written again after a
        # start.
        if not self._settled:
            await self._settle(frozenset(job.uid for job in jobs()))
            self._settled = True
        await self._write_all(until=self._clock())
        # Pruning runs last, so a slow list of many files delays no new document.
        if self._clock() >= self._prune_at:
            await self._prune()
            self._prune_at = self._clock() + PRUNE_SECONDS

    async def flush(self) -> None:
        """Write all recorded changes, due or not. Nothing is written before the archive was listed.

        Raises:
            ArchiveError: the storage rejected a write.
        """
        # Before the list, a job that was archived already could be written again.
        if self._settled:
            await self._write_all(until=float("inf"))

    def _note(self, due: _Due) -> None:
        self._due[due.job.uid] = due
        self._changed.set()

    def _next_at(self) -> float:
        due = (*self._due.values(), *self._lines_due.values())
        return min([self._prune_at, *(each.at for each in due)])

    def _overdue_seconds(self) -> float:
        now = self._clock()
        return max([0.0, *(now - due.at for due in self._due.values())])

    async def _settle(self, present: frozenset[str]) -> None:
        """List the archive. Jobs that disappeared while no archiver ran have ended."""
        # Phase 1: ended jobs need no further write.
        ended = (EndedPath.parse(file.path) for file in await self._store.list(ENDED))
        self._ended = {path.uid for path in ended if path is not None}
        for uid in self._ended & self._due.keys():
            del self._due[uid]
        # Phase 2: a live document without an object belongs to a job that was deleted unseen.
        for file in await self._store.list(LIVE):
            uid = live_uid(file.path)
            if uid is not None and uid not in present:
                await self._end_unseen(file, uid)
        log.info("archive_settled", ended=len(self._ended), due=len(self._due))

    async def _end_unseen(self, file: StoredFile, uid: str) -> None:
        """Archive a job whose deletion was not observed, soon after its document was written.

        Skip namespaces that another archiver with the same storage covers.
        """
        if uid not in self._ended:
            # The real time of the deletion is unknown. The document's last write is the closest
            # bound.
            deleted_at = file.modified_at.timestamp()
            try:
                metadata, body = with_deletion(
                    await self._store.get(file.path), deleted_at=deleted_at
                )
            except Undecodable as error:
                log.warning("document_unreadable", path=file.path, why=str(error))
                return
            # Another installation may share the bucket, and its jobs are not in this cluster's
            # list.
            if not self._covers(str(metadata.get("namespace"))):
                return
            path = EndedPath(
                day=day_of(deleted_at),
                namespace=str(metadata.get("namespace")),
                name=str(metadata.get("name")),
                uid=uid,
            )
            # Put before delete: a crash between both leaves two documents, never none.
            await self._store.put(str(path), body)
            self._ended.add(uid)
        await self._store.delete([file.path])

    async def _write_all(self, *, until: float) -> None:
        """Write log lines first, because pods may be deleted. A rejected log stops no document.

        Raises:
            ArchiveError: the storage rejected lines or documents.
        """
        refused: list[ArchiveError] = []
        # Both steps run even if the first fails. The first error is raised at the end.
        for write in (self._write_lines, self._write_due):
            try:
                await write(until=until)
            except ArchiveError as error:
                refused.append(error)
        _raise_first(refused)

    async def _write_lines(self, *, until: float) -> None:
        due = [each for each in self._lines_due.values() if each.at <= until]
        # Batches bound the concurrent reads of logs, each of which may hold megabytes.
        for first in range(0, len(due), _WRITES_AT_ONCE):
            batch = due[first : first + _WRITES_AT_ONCE]
            _raise_first(
                await asyncio.gather(*map(self._write_lines_of, batch), return_exceptions=True)
            )

    async def _write_lines_of(self, due: _Due) -> None:
        """Write the last lines of the pods of a job with an incident, and delete the oldest."""
        job = due.job
        # Set before the read: a job that fails repeatedly must not be read in a loop.
        self._lines_at[job.uid] = self._clock()
        lines = await self._read_logs(job) if self._read_logs is not None else b""
        if lines:
            place = EarlierLogs(
                namespace=job.namespace,
                uid=job.uid,
                generation=job.generation,
                at=int(self._clock()),
            )
            await self._store.put(str(place), lines)
            # The list comes after the put, so the new file counts for the limit.
            files = await self._store.list(logs_of(job.namespace, job.uid))
            kept = earlier_logs(file.path for file in files)
            await self._store.delete([str(each) for each in kept[:-MOST_EARLIER_LOGS]])
        # A newer entry for the same job stays due, because the job changed during the write.
        if self._lines_due.get(job.uid) is due:
            del self._lines_due[job.uid]

    async def _write_due(self, *, until: float) -> None:
        # Oldest first, so that no job starves while others change all the time.
        due = sorted((each for each in self._due.values() if each.at <= until), key=lambda d: d.at)
        for first in range(0, len(due), _WRITES_AT_ONCE):
            batch = due[first : first + _WRITES_AT_ONCE]
            _raise_first(await asyncio.gather(*map(self._write, batch), return_exceptions=True))

    async def _write(self, due: _Due) -> None:
        job, uid, ended_at = due.job, due.job.uid, due.ended_at
        if ended_at is None:
            await self._store.put(live_path(uid), self._document(due, events=()))
            self._written_at[uid] = self._clock()
            self._metrics.documents.labels("live").inc()
        else:
            # Events, lines and document come first. Only then the live document is deleted.
            day = day_of(ended_at)
            path = EndedPath(day=day, namespace=job.namespace, name=job.name, uid=uid)
            events = await self._read_events(job)
            # Pods of a job that ended may be gone. A document without lines is still complete.
            if self._read_logs is not None and (lines := await self._read_logs(job)):
                await self._store.put(path.logs, lines)
            await self._store.put(str(path), self._document(due, events=events))
            await self._store.delete([live_path(uid)])
            self._ended.add(uid)
            self._written_at.pop(uid, None)
            self._lines_at.pop(uid, None)
            self._lines_due.pop(uid, None)
            self._metrics.documents.labels("ended").inc()
            log.info("job_archived", job=f"{job.namespace}/{job.name}", path=str(path))
        # A job that changed during the write keeps its newer entry, unless it has ended.
        if self._due.get(uid) is due or uid in self._ended:
            self._due.pop(uid, None)

    def _document(self, due: _Due, *, events: Sequence[Json]) -> bytes:
        return document(
            due.job.unpacked(),
            events=events,
            archived_at=self._clock(),
            deleted_at=due.deleted_at if not due.job.finished_at else None,
        )

    async def _prune(self) -> None:
        """Delete documents of expired days."""
        # Days, not times: a whole day of documents is deleted at once.
        oldest = self._oldest_day()
        old = [
            file.path
            for file in await self._store.list(ENDED)
            if (day := ended_day(file.path)) is not None and day < oldest
        ]
        old += [
            str(each)
            for each in earlier_logs(file.path for file in await self._store.list(LOGS))
            if day_of(each.at) < oldest
        ]
        await self._store.delete(old)
        if old:
            log.info("archive_pruned", files=len(old), before=oldest.isoformat())

    def _oldest_day(self) -> date:
        # Days before the first of the calendar mean that nothing is too old.
        return date.fromordinal(max(1, day_of(self._clock()).toordinal() - self._keep_days))

    def _is_too_old(self, ended_at: float | None) -> bool:
        return ended_at is not None and day_of(ended_at) < self._oldest_day()


_HOLDS_PODS: Final = frozenset({"Starting", "Running", "Recovering"})


def _leaves_lines(before: ArchivableJob | None, job: ArchivableJob) -> bool:
    """Return whether a running job had an incident, or releases its pods."""
    if before is None or job.finished_at:
        return False
    # A phase outside of these has no pods, so their lines are about to disappear.
    gives_up = before.phase in _HOLDS_PODS and job.phase not in {*_HOLDS_PODS, before.phase}
    return gives_up or (job.incident != before.incident and bool(job.incident))


def _raise_first(answers: Iterable[BaseException | None]) -> None:
    for answer in answers:
        if answer is not None:
            raise answer


def _moment(text: str) -> float | None:
    """Return the seconds since the epoch of an RFC 3339 time, or None."""
    # A time of a foreign writer may be invalid, and must not raise.
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
