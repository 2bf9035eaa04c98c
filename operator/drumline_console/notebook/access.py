"""Access a cluster for a notebook's user, from a thread with its own event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from drumline.kube import errors
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.overview.jobs import job_row, lines, positions
from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import JobRow
from drumline_cli.cluster_access import cluster_client, missing_job, refusal
from drumline_cli.errors import NotAnswered
from drumline_cli.overview.read import WantedKinds, from_cluster, only_job
from drumline_console.notebook.loop_thread import LoopThread

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """A job at one moment.

    Attributes:
        row: the job.
        uid: UID of the job, which identifies it among jobs of the same name.
        as_of: time of the read, in seconds since the epoch.
        remarks: sentences about objects that could not be read.
    """

    row: JobRow
    uid: str
    as_of: float
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookAccess:
    """Credentials, a namespace, and the loop for requests.

    Attributes:
        credentials: credentials of the kubeconfig.
        namespace: namespace of jobs that are given by name only.
        loop: loop in which requests run.
        patience_seconds: time for which the API server may be unavailable before a wait fails. It
            restarts at every upgrade.
    """

    credentials: Credentials
    namespace: str
    loop: LoopThread
    patience_seconds: float = 300.0

    def cluster(self) -> ClusterObjects:
        """Return the current jobs, queues and priority classes.

        Raises:
            NotAnswered: the jobs cannot be read.
        """
        # A place in line counts the jobs of every namespace of the queue.
        wanted = WantedKinds(namespace=None, queues=True)
        return self.loop.run(from_cluster(self.credentials, wanted, own=self.namespace))

    def job(self, name: str) -> SeenJob:
        """Return the current job.

        Raises:
            NotAnswered: the job does not exist or cannot be read.
        """
        cluster = self.cluster()
        known = only_job(cluster, namespace=self.namespace, name=name)
        places = positions(lines(cluster.jobs, cluster.priorities))
        row = job_row(known, now=cluster.as_of, position=places.get(known.key))
        return SeenJob(
            row=row, uid=known.metadata.uid, as_of=cluster.as_of, remarks=tuple(cluster.remarks)
        )

    async def change(
        self, name: str, what: Callable[[KubeClient], Awaitable[T]], *, verb: str
    ) -> T:
        """Change a job.

        Args:
            name: name of the job.
            what: makes the change.
            verb: Kubernetes verb, for errors.

        Raises:
            NotAnswered: the job does not exist, or the cluster refuses.
        """
        async with cluster_client(self.credentials) as client:
            try:
                return await what(client)
            except errors.NotFound as error:
                reason = missing_job(error, job=name, namespace=self.namespace)
                raise NotAnswered(reason) from None
            except errors.KubeError as error:
                named = f"trainingjob {self.namespace}/{name}"
                raise NotAnswered(refusal(error, what=named, verb=verb)) from None
