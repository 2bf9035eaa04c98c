"""Read the archive for the page: on request, at most once a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from drumline_addons.archive.reading import EndedJob
from drumline_cli.archived_jobs import ArchivedJobs, archived_jobs
from drumline_cli.errors import NotAnswered
from drumline_console.ui.cancellation import finish

FRESH_SECONDS: Final = 60.0
SHOWN_DAYS: Final = 30


class ArchiveSource(Protocol):
    """Source of the page's history."""

    async def ended(self) -> ArchivedJobs:
        """Return the jobs that ended within `SHOWN_DAYS`, newest first."""
        ...

    async def job(self, namespace: str, name: str, uid: str) -> EndedJob:
        """Return one archived job.

        Args:
            namespace: namespace of the job.
            name: name of the job.
            uid: uid of the job.
        """
        ...


class Archive:
    """The archive at a URL, read with the user's rights.

    Args:
        url: URL of the archive. None: the URL of the environment.
        environment: environment of the process.
        clock: seconds since the epoch.
    """

    def __init__(
        self, url: str | None, environment: Mapping[str, str], *, clock: Callable[[], float]
    ) -> None:
        self._url = url
        self._environment = environment
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read_at = 0.0
        self._ended = ArchivedJobs(jobs=())

    async def ended(self) -> ArchivedJobs:
        """Return the jobs that ended within `SHOWN_DAYS`, newest first.

        The result is at most `FRESH_SECONDS` old.

        Raises:
            CommandError: the archive cannot be read.
        """
        async with self._reading:
            now = self._clock()
            if now - self._read_at > FRESH_SECONDS:
                self._ended = await finish(
                    asyncio.to_thread(
                        archived_jobs,
                        self._url,
                        self._environment,
                        since=now - SHOWN_DAYS * 86_400.0,
                    )
                )
                self._read_at = now
            return self._ended

    async def job(self, namespace: str, name: str, uid: str) -> EndedJob:
        """Return one archived job.

        Args:
            namespace: namespace of the job.
            name: name of the job.
            uid: uid of the job.

        Raises:
            CommandError: the job does not exist, or the archive cannot be read.
        """
        wanted = (namespace, name, uid)
        for each in (await self.ended()).jobs:
            if (each.path.namespace, each.path.name, each.path.uid) == wanted:
                return each
        raise NotAnswered(
            f"the archive has no job {namespace}/{name} of the last {SHOWN_DAYS} days"
        )
