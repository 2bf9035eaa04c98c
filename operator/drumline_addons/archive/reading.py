"""Read ended jobs from the archive."""

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
    """An ended job of the archive.

    Attributes:
        job: the job as rows need it.
        path: path of its document.
        items: the job and its events, as JSON.
        archived_at: time of the write (RFC 3339).
        deleted_at: time of deletion, if the job had not ended (RFC 3339).
    """

    job: JobObject
    path: EndedPath
    items: Sequence[bytes]
    archived_at: str
    deleted_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobs:
    """Jobs of the archive, and the number of documents that could not be read."""

    jobs: tuple[EndedJob, ...]
    unreadable: int


async def read_ended(
    store: ArchiveStore,
    *,
    since: date | None,
    namespace: str | None = None,
    name: str | None = None,
) -> EndedJobs:
    """Return the jobs that ended, newest first.

    Args:
        store: the archive.
        since: first day (UTC). None: all days.
        namespace: only jobs of this namespace.
        name: only jobs of this name.

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
    """Return the job of a document.

    Raises:
        Undecodable: the data is not a document.
        MsgspecError: the document contains no TrainingJob.
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
    """Log lines of a job's pods from before its end.

    Attributes:
        texts: lines of the requested generation.
        generations: generations with lines.
    """

    texts: tuple[bytes, ...]
    generations: tuple[int, ...]


async def read_earlier_logs(
    store: ArchiveStore, *, namespace: str, uid: str, generation: int
) -> EarlierLines:
    """Return the last lines of a job's pods at incidents of a generation, oldest first.

    Args:
        store: the archive.
        namespace: namespace of the job.
        uid: uid of the job.
        generation: generation of the job.

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
