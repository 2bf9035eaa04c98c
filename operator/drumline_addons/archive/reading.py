"""Reads jobs that have ended from the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import msgspec

from drumline.kube.codec import Undecodable
from drumline.overview.archived import ended_job
from drumline.overview.objects import JobObject
from drumline_addons.archive.documents import archived_job
from drumline_addons.archive.layout import ENDED, EndedPath, earlier_logs, logs_of
from drumline_addons.archive.store import ArchiveStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job of the archive.

    Attributes:
        job: as rows are made of it.
        path: of its document.
        items: the job and the events about it, as JSON.
        archived_at: when the document was written (RFC 3339).
        deleted_at: when the object was deleted though the job had not ended (RFC 3339).
    """

    job: JobObject
    path: EndedPath
    items: Sequence[bytes]
    archived_at: str
    deleted_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobs:
    """Jobs of the archive, and how many documents could not be read."""

    jobs: tuple[EndedJob, ...]
    unreadable: int


async def read_ended(
    store: ArchiveStore,
    *,
    since: date | None,
    namespace: str | None = None,
    name: str | None = None,
) -> EndedJobs:
    """The jobs that ended, the last first.

    Args:
        store: the archive.
        since: the first day (UTC); None: all that is kept.
        namespace: only of this one.
        name: only of this name.

    Raises:
        ArchiveError: the archive cannot be read.
    """
    paths = [EndedPath.parse(file.path) for file in await store.list(ENDED)]
    wanted = [
        path
        for path in paths
        if path is not None
        and (since is None or path.day >= since)
        and namespace in {None, path.namespace}
        and name in {None, path.name}
    ]
    jobs: list[EndedJob] = []
    for path, raw in zip(wanted, await store.get_all([str(each) for each in wanted]), strict=True):
        try:
            jobs.append(ended_of(path, raw))
        except (Undecodable, msgspec.MsgspecError, RecursionError):
            continue
    jobs.sort(key=lambda each: each.job.status.finished_at or "", reverse=True)
    return EndedJobs(jobs=tuple(jobs), unreadable=len(wanted) - len(jobs))


_decode_job = msgspec.json.Decoder(JobObject).decode


def ended_of(path: EndedPath, raw: bytes) -> EndedJob:
    """The job of a document.

    Raises:
        Undecodable: it is none.
        MsgspecError: it holds no TrainingJob.
    """
    read = archived_job(raw)
    job = _decode_job(read.items[0])
    return EndedJob(
        job=ended_job(job, deleted_at=read.archive.deleted_at),
        path=path,
        items=tuple(bytes(item) for item in read.items),
        archived_at=read.archive.archived_at,
        deleted_at=read.archive.deleted_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierLines:
    """What was kept of a job's pods before its end.

    Attributes:
        texts: of the generation that was asked for.
        generations: of which there are any.
    """

    texts: tuple[bytes, ...]
    generations: tuple[int, ...]


async def read_earlier_logs(
    store: ArchiveStore, *, namespace: str, uid: str, generation: int
) -> EarlierLines:
    """The last lines of a job's pods at incidents of a generation, the oldest first.

    Raises:
        ArchiveError: the archive cannot be read.
    """
    files = await store.list(logs_of(namespace, uid))
    known = earlier_logs(file.path for file in files)
    wanted = [str(each) for each in known if each.generation == generation]
    return EarlierLines(
        texts=tuple(await store.get_all(wanted)),
        generations=tuple(dict.fromkeys(each.generation for each in known)),
    )
