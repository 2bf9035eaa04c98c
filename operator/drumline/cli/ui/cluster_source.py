"""What the page shows: read when somebody looks, every few seconds at most, for all windows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from drumline.cli.cluster_access import cluster_client, missing_job, not_answered
from drumline.cli.decide import live_objects, what_if
from drumline.cli.decide.what_if import Change, WhatIfAnswer
from drumline.cli.errors import BadInput, NotAnswered, NotLoggedIn
from drumline.cli.jobs.create_clone import create_clone
from drumline.cli.jobs.follow import read_job
from drumline.cli.jobs.named_job import NamedJob
from drumline.cli.overview.read import WantedKinds, from_cluster
from drumline.cli.report import from_cluster as one_job
from drumline.cli.report.job_input import JobInput
from drumline.kube import errors, writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import TRAINING_JOBS
from drumline.overview.objects import ClusterObjects
from drumline.scheduling.model import Policy

FRESH_SECONDS: Final = 3.0
BASELINE_SECONDS: Final = 15.0
"""A slider is moved several times."""
_EVERYTHING: Final = WantedKinds(namespace=None, queues=True, nodes=True)
_JOBS_ALONE: Final = WantedKinds(namespace=None, queues=True)


class ClusterSource(Protocol):
    """Where the page's content comes from, and where its buttons go.

    Each method raises CommandError: what the cluster did not give, as a sentence.
    """

    async def cluster(self) -> ClusterObjects:
        """The whole cluster, at most `FRESH_SECONDS` old."""
        ...

    async def job(self, job: NamedJob) -> JobInput:
        """One job with its events."""
        ...

    async def manifest(self, job: NamedJob) -> dict[str, Any]:
        """One job as the API server prints it."""
        ...

    async def what_if(self, change: Change) -> WhatIfAnswer:
        """What one cycle would decide otherwise."""
        ...

    async def change(self, job: NamedJob, spec: dict[str, Any]) -> None:
        """Write these fields of its spec; None removes one."""
        ...

    async def delete(self, job: NamedJob, *, uid: str) -> None:
        """Delete this very job, not a later one of its name."""
        ...

    async def clone(self, job: NamedJob, manifest: dict[str, Any]) -> None:
        """Create a copy of it."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    cluster: ClusterObjects


@dataclass(frozen=True, slots=True, kw_only=True)
class _Baseline:
    at: float
    baseline: what_if.Baseline
    remarks: tuple[str, ...]


@dataclass(slots=True)
class ClusterMemory:
    """What was read lately with one identity, for all its windows."""

    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    seen: _Seen | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    baseline: _Baseline | None = None


@dataclass(frozen=True, slots=True)
class ReadSlots:
    """How much this process does at a time, for all identities."""

    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    questions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


class LiveCluster:
    """A cluster behind an API server, with the rights of these credentials.

    Args:
        credentials: of the user.
        clock: seconds that only grow.
        policy: of the operator, for questions.
        read: reads the cluster.
        memory: of these credentials.
        slots: of this process.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Callable[[], float],
        policy: Policy,
        read: Callable[..., Awaitable[ClusterObjects]] = from_cluster,
        memory: ClusterMemory | None = None,
        slots: ReadSlots | None = None,
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._read = read
        self._policy = policy
        self._memory = memory or ClusterMemory()
        self._slots = slots or ReadSlots()

    async def cluster(self) -> ClusterObjects:
        """The whole cluster, at most `FRESH_SECONDS` old; without nodes for who may not list them.

        Raises:
            NotAnswered: the jobs cannot be read.
        """
        memory = self._memory
        async with memory.reading:  # windows that ask meanwhile get the same answer
            if memory.seen is None or self._clock() - memory.seen.at > FRESH_SECONDS:
                async with self._slots.reads:
                    cluster = await self._everything()
                memory.seen = _Seen(at=self._clock(), cluster=cluster)
            return memory.seen.cluster

    async def job(self, job: NamedJob) -> JobInput:
        """One job with its events, as it is now."""
        return await one_job.read(self._credentials, job=job.name, namespace=job.namespace)

    async def manifest(self, job: NamedJob) -> dict[str, Any]:
        """One job as the API server prints it."""
        async with self._asked(job, verb="read") as client:
            return await read_job(client, job=job.name, namespace=job.namespace)

    async def what_if(self, change: Change) -> WhatIfAnswer:
        """What one cycle would decide otherwise, on objects at most `BASELINE_SECONDS` old.

        Raises:
            CommandError: a kind may not be listed, or what would be different is not there.
        """
        memory = self._memory
        # cycles of two questions would take as long side by side
        async with memory.asking, self._slots.questions:
            known = memory.baseline
            if known is None or self._clock() - known.at > BASELINE_SECONDS:
                live = await live_objects.read(self._credentials)
                made = await asyncio.to_thread(
                    what_if.baseline, live.manifests, policy=self._policy
                )
                known = _Baseline(at=self._clock(), baseline=made, remarks=live.remarks)
                memory.baseline = known
            answer = await asyncio.to_thread(what_if.answer, known.baseline, change)
        return replace(answer, remarks=(*known.remarks, *answer.remarks))

    async def change(self, job: NamedJob, spec: dict[str, Any]) -> None:
        """Write these fields of its spec."""
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
            async with cluster_client(self._credentials) as client:
                yield client
        except errors.NotFound as error:
            raise NotAnswered(missing_job(error, job=job.name, namespace=job.namespace)) from None
        except errors.KubeError as error:
            raise not_answered(error, what=job.text, verb=verb) from None
        except ValueError as error:  # no name of an object
            raise BadInput(str(error)) from None
        self._memory.seen = self._memory.baseline = None

    async def _everything(self) -> ClusterObjects:
        own = self._credentials.namespace
        try:
            return await self._read(self._credentials, _EVERYTHING, own=own)
        except NotLoggedIn:
            raise
        except NotAnswered:  # most users may not list nodes
            return await self._read(self._credentials, _JOBS_ALONE, own=own)
