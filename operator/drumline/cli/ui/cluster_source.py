"""What the page shows: read when somebody looks, every few seconds at most, for all windows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from drumline.cli.cluster_access import cluster_client, refusal
from drumline.cli.errors import NotAnswered
from drumline.cli.overview.read import WantedKinds, from_cluster
from drumline.cli.report import from_cluster as one_job
from drumline.cli.report.job_input import JobInput
from drumline.kube import errors, writes
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import TRAINING_JOBS
from drumline.overview.objects import ClusterObjects

FRESH_SECONDS: Final = 3.0
_EVERYTHING: Final = WantedKinds(namespace=None, queues=True, nodes=True)
_JOBS_ALONE: Final = WantedKinds(namespace=None, queues=True)


class ClusterSource(Protocol):
    """Where the page's content comes from, and where its buttons go."""

    async def cluster(self) -> ClusterObjects:
        """The whole cluster, at most `FRESH_SECONDS` old."""
        ...

    async def job(self, namespace: str, name: str) -> JobInput:
        """One job with its events."""
        ...

    async def suspend(self, namespace: str, name: str, *, suspend: bool) -> None:
        """Stop or resume a job."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    cluster: ClusterObjects


class LiveCluster:
    """A cluster behind an API server, with the rights of the kubeconfig's user.

    Args:
        credentials: of the user.
        clock: seconds that only grow.
        read: reads the cluster.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Callable[[], float],
        read: Callable[..., Awaitable[ClusterObjects]] = from_cluster,
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._read = read
        self._reading = asyncio.Lock()
        self._seen: _Seen | None = None

    async def cluster(self) -> ClusterObjects:
        """The whole cluster, at most `FRESH_SECONDS` old; without nodes for who may not list them.

        Raises:
            NotAnswered: the jobs cannot be read.
        """
        async with self._reading:  # windows that ask meanwhile get the same answer
            if self._seen is None or self._clock() - self._seen.at > FRESH_SECONDS:
                cluster = await self._everything()
                self._seen = _Seen(at=self._clock(), cluster=cluster)
            return self._seen.cluster

    async def job(self, namespace: str, name: str) -> JobInput:
        """One job with its events, as it is now.

        Raises:
            CommandError: there is none, or it may not be read.
        """
        return await one_job.read(self._credentials, job=name, namespace=namespace)

    async def suspend(self, namespace: str, name: str, *, suspend: bool) -> None:
        """Write spec.suspend.

        Raises:
            NotAnswered: the user may not, or there is no such job.
        """
        try:
            async with cluster_client(self._credentials) as client:
                await writes.merge_patch(
                    client,
                    TRAINING_JOBS,
                    name=name,
                    namespace=namespace,
                    body={"spec": {"suspend": suspend}},
                )
        except errors.KubeError as error:
            what = f"trainingjob {namespace}/{name}"
            raise NotAnswered(refusal(error, what=what, verb="change")) from None
        self._seen = None

    async def _everything(self) -> ClusterObjects:
        own = self._credentials.namespace
        try:
            return await self._read(self._credentials, _EVERYTHING, own=own)
        except NotAnswered:  # most users may not list nodes
            return await self._read(self._credentials, _JOBS_ALONE, own=own)
