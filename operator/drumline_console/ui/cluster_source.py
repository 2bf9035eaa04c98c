"""Read the cluster for the page: on request, at most every few seconds for all windows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from drumline.kube import errors, writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import TRAINING_JOBS
from drumline.overview.objects import ClusterObjects
from drumline_cli.cluster_access import cluster_client, missing_job, not_answered
from drumline_cli.decide.what_if import Change, WhatIfAnswer
from drumline_cli.errors import BadInput, NotAnswered, NotLoggedIn
from drumline_cli.jobs.create_clone import create_clone
from drumline_cli.jobs.follow import read_job
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.overview.read import WantedKinds, from_cluster
from drumline_cli.report import from_cluster as one_job
from drumline_cli.report.job_input import JobInput
from drumline_console.ui.fair_turns import FairTurns
from drumline_console.ui.kept_value import KeptValue
from drumline_console.ui.questions import Questions

FRESH_SECONDS: Final = 3.0
# Windows of one user share the result, so reading everything is cheap enough.
_EVERYTHING: Final = WantedKinds(namespace=None, queues=True, nodes=True)
_JOBS_ALONE: Final = WantedKinds(namespace=None, queues=True)


class ClusterSource(Protocol):
    """Source of the page's content, and target of its buttons.

    Each method raises CommandError with a sentence if the cluster fails or refuses.
    """

    async def cluster(self) -> ClusterObjects:
        """Return the whole cluster, at most `FRESH_SECONDS` old."""
        ...

    async def job(self, job: NamedJob) -> JobInput:
        """Return one job with its events."""
        ...

    async def manifest(self, job: NamedJob) -> dict[str, Any]:
        """Return one job as the API server stores it."""
        ...

    async def what_if(self, change: Change) -> WhatIfAnswer:
        """Return the changed decisions of one cycle."""
        ...

    async def change(self, job: NamedJob, spec: dict[str, Any]) -> None:
        """Write these fields of its spec. None removes a field."""
        ...

    async def delete(self, job: NamedJob, *, uid: str) -> None:
        """Delete exactly this job, not a later job of the same name."""
        ...

    async def clone(self, job: NamedJob, manifest: dict[str, Any]) -> None:
        """Create a copy of the job."""
        ...


def new_memory() -> KeptValue[ClusterObjects]:
    """Return a cache for the objects of one share, common to all its windows."""
    return KeptValue(seconds=FRESH_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request.

    Attributes:
        credentials: credentials of the user.
        key: tells these credentials from all others.
        share: names the caller whose turns are taken; one may have many credentials.
    """

    credentials: Credentials
    key: bytes = b""
    share: str = ""


def _request_shares() -> FairTurns:
    # Small numbers: each request opens connections to the API server.
    return FairTurns(at_once=4, at_once_each=2, waiting=64, waiting_each=16)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Limits on concurrent work of this process, for all callers."""

    questions: Questions
    requests: FairTurns = field(default_factory=_request_shares)


class LiveCluster:
    """A cluster behind an API server, with the rights of given credentials.

    Args:
        caller: caller to whom the credentials belong.
        limits: limits of this process.
        read: reads the cluster.
        memory: memory of the caller's share.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        limits: SharedLimits,
        read: Callable[..., Awaitable[ClusterObjects]] = from_cluster,
        memory: KeptValue[ClusterObjects] | None = None,
    ) -> None:
        self._caller = caller
        self._credentials = caller.credentials
        self._limits = limits
        self._read = read
        self._memory = memory or new_memory()

    async def cluster(self) -> ClusterObjects:
        """Return the whole cluster, at most `FRESH_SECONDS` old.

        The nodes are missing if the caller may not list them.

        Raises:
            NotAnswered: the jobs cannot be read.
        """
        # The namespace belongs to the key, because it decides what may be read.
        of = self._caller.key + self._credentials.namespace.encode()
        return await self._memory.value(self._everything, of=of)

    async def job(self, job: NamedJob) -> JobInput:
        """Read one job with its events."""
        async with self._turn():
            return await one_job.read(self._credentials, job=job.name, namespace=job.namespace)

    async def manifest(self, job: NamedJob) -> dict[str, Any]:
        # The manifest is read again for each action, so a stale page cannot overwrite a change.
        """Return one job as the API server stores it."""
        async with self._asked(job, verb="read") as client:
            return await read_job(client, job=job.name, namespace=job.namespace)

    async def what_if(self, change: Change) -> WhatIfAnswer:
        """Return the changed decisions of one cycle.

        Raises:
            CommandError: too many questions wait, a kind may not be listed, or the changed object
                does
                not exist.
        """
        return await self._limits.questions.answer(
            change,
            caller=self._caller.key,
            share=self._caller.share,
            credentials=self._credentials,
        )

    async def change(self, job: NamedJob, spec: dict[str, Any]) -> None:
        """Write these fields of its spec."""
        # A merge patch leaves other fields alone, so concurrent changes of them survive.
        async with self._asked(job, verb="change") as client:
            await writes.merge_patch(
                client,
                TRAINING_JOBS,
                name=job.name,
                namespace=job.namespace,
                body={"spec": spec},
            )

    async def delete(self, job: NamedJob, *, uid: str) -> None:
        """Delete this very job."""
        # The uid makes sure that the user deletes the job that the page showed.
        async with self._asked(job, verb="delete") as client:
            await writes.delete(
                client, TRAINING_JOBS, name=job.name, uid=uid, namespace=job.namespace
            )

    async def clone(self, job: NamedJob, manifest: dict[str, Any]) -> None:
        """Create a copy of it."""
        async with self._asked(job, verb="clone") as client:
            await create_clone(client, manifest, original=job.text)

    @asynccontextmanager
    async def _asked(self, job: NamedJob, *, verb: str) -> AsyncGenerator[KubeClient]:
        try:
            async with self._turn(), cluster_client(self._credentials) as client:
                yield client
        except errors.NotFound as error:
            raise NotAnswered(missing_job(error, job=job.name, namespace=job.namespace)) from None
        except errors.KubeError as error:
            raise not_answered(error, what=job.text, verb=verb) from None
        except ValueError as error:  # no name of an object
            raise BadInput(str(error)) from None
        # After a change, the next page must show it.
        self._memory.drop()
        self._limits.questions.changed_by(self._caller.key)

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return self._limits.requests.turn(self._caller.share)

    # One turn covers both attempts, because the second follows the first at once.
    async def _everything(self) -> ClusterObjects:
        own = self._credentials.namespace
        async with self._turn():
            try:
                return await self._read(self._credentials, _EVERYTHING, own=own)
            # An expired token fails both attempts. A second request would be useless.
            except NotLoggedIn:
                raise
            except NotAnswered:  # most users may not list nodes
                return await self._read(self._credentials, _JOBS_ALONE, own=own)
