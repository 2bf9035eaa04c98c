"""The archive that the arguments or the environment name."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from drumline_addons.archive.layout import EndedPath, day_of
from drumline_addons.archive.reading import EndedJob, read_earlier_logs, read_ended
from drumline_addons.archive.store import FORMS, ArchiveError, ArchiveStore, NotArchived
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.formatting import many
from drumline_cli.options import acts_as_another
from drumline_cli.overview_arguments import ARCHIVE_VARIABLE
from drumline_contract import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedJobs:
    """The jobs, and what could not be read, as sentences."""

    jobs: tuple[EndedJob, ...]
    remarks: tuple[str, ...] = ()


def refuse_identity(chosen: argparse.Namespace) -> None:
    """Refuse to read the archive as an identity of the cluster, which may read less.

    Raises:
        BadInput: an identity is given.
    """
    if acts_as_another(chosen):
        raise BadInput(
            "the archive is read with the rights of its storage, which knows no identity of the"
            " cluster: leave --as, --as-group and --as-uid out"
        )


def archived_jobs(
    url: str | None,
    environment: Mapping[str, str],
    *,
    since: float | None,
    namespace: str | None = None,
    name: str | None = None,
) -> ArchivedJobs:
    """Return the jobs that ended, newest first.

    Args:
        url: URL of the archive; None: that of the environment.
        environment: environment variables of the process.
        since: moments before it need not be read, in seconds since the epoch; None: all.
        namespace: only of this one.
        name: only of this name.

    Raises:
        BadInput: no archive is named, or it is none.
        NotAnswered: it cannot be read.
    """
    store = _store(url, environment)
    first: date | None = None if since is None else day_of(since)
    try:
        read = asyncio.run(read_ended(store, since=first, namespace=namespace, name=name))
    except ArchiveError as error:
        raise NotAnswered(plain(str(error))) from None
    documents = many(read.unreadable, "document")
    remarks = (f"{documents} of the archive cannot be read by this version of drumline.",)
    return ArchivedJobs(jobs=read.jobs, remarks=remarks if read.unreadable else ())


def archived_logs(url: str | None, environment: Mapping[str, str], path: EndedPath) -> bytes:
    """Return the last lines of the pods of a job.

    Args:
        url: URL of the archive, from the command line.
        environment: environment variables.
        path: place of the job in the archive.

    Raises:
        BadInput: no archive is named, or it is none.
        NotAnswered: they were not kept, or cannot be read.
    """
    store = _store(url, environment)
    try:
        return asyncio.run(store.get(path.logs))
    except NotArchived:
        raise NotAnswered(
            f"the archive has no logs of the pods of {plain(path.namespace)}/{plain(path.name)}:"
            " the chart's archive.logs was disabled, or the pods were already deleted"
        ) from None
    except ArchiveError as error:
        raise NotAnswered(plain(str(error))) from None


def archived_earlier_logs(
    url: str | None,
    environment: Mapping[str, str],
    *,
    namespace: str,
    uid: str,
    generation: int,
) -> tuple[bytes, ...]:
    """Return the last lines of the pods of a job's earlier generation, at each of its incidents.

    Args:
        url: URL of the archive, from the command line.
        environment: environment variables.
        namespace: namespace of the job.
        uid: uid of the job.
        generation: generation of the job.

    Raises:
        BadInput: no archive is named, or it is none.
        NotAnswered: they were not kept, or cannot be read.
    """
    store = _store(url, environment)
    try:
        kept = asyncio.run(
            read_earlier_logs(store, namespace=namespace, uid=uid, generation=generation)
        )
    except ArchiveError as error:
        raise NotAnswered(plain(str(error))) from None
    if not kept.texts:
        known = ", ".join(map(str, kept.generations)) or "none"
        raise NotAnswered(
            f"the archive has no logs of the pods of generation {generation}; it has generations:"
            f" {known}. Logs are stored at incidents, if the chart's archive.logs is enabled"
        )
    return kept.texts


def _store(url: str | None, environment: Mapping[str, str]) -> ArchiveStore:
    named = url or environment.get(ARCHIVE_VARIABLE)
    if not named:
        raise BadInput(f"no archive is set; use --archive URL, or {ARCHIVE_VARIABLE}: {FORMS}")
    try:
        return ArchiveStore.at(named)
    except ArchiveError as error:
        raise BadInput(plain(str(error))) from None
