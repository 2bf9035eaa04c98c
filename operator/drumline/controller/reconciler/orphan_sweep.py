"""Delete pods of deleted jobs that the garbage collector ignores.

`kubectl delete --cascade=orphan` removes the owner references from a job's pods. A leading operator
deletes such pods when the job is being deleted. Without a leader at that time they would hold their
GPUs forever. So the sweep looks for them at the start of each term, and every `SWEEP_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from drumline.controller.nodes.pod_conversion import facts_of
from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.kube.kinds import PODS, TRAINING_JOBS
from drumline.kube.views import PodView
from drumline.telemetry import logs
from drumline_api.base import LABEL_JOB, LABEL_JOB_UID

log = logs.get("drumline.controller.reconciler.orphan_sweep")

SWEEP_SECONDS: Final = 600.0


class JobIdentity(NamedTuple):
    """The job that a pod's labels name."""

    namespace: str
    name: str
    uid: str


class OrphanSweep:
    """Finds and deletes pods without an owner whose job does not exist.

    Args:
        client: fenced client for the API server.
        pods: iterates over the pods in our namespaces, from the cache.
        uid_of: returns the uid of a job by its key, from the cache, or None.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pods: Callable[[], Iterable[PodView]],
        uid_of: Callable[[str], str | None],
    ) -> None:
        self._client = client
        self._pods = pods
        self._uid_of = uid_of

    async def run(self) -> None:
        """Sweep at once and every `SWEEP_SECONDS`. Never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Sweep once. Pods that cannot be deleted are left for the next time.

        Raises:
            NotLeader: this process may not write any more.
        """
        # The cache decides quickly for most jobs. Only for the others the API server is asked,
        # because caches of pods and jobs are of different moments.
        for job, pods in orphans_by_job(self._pods()).items():
            if self._uid_of(f"{job.namespace}/{job.name}") == job.uid:
                continue
            try:
                if not await job_exists(self._client, job):
                    await self._delete(job, pods)
            except NotLeader:
                raise
            except (KubeError, codec.Undecodable) as error:
                log.warning(
                    "orphan_sweep_failed", job=f"{job.namespace}/{job.name}", error=str(error)
                )

    async def _delete(self, job: JobIdentity, pods: Iterable[PodView]) -> None:
        for pod in pods:
            log.info("orphan_pod_deleted", job=f"{job.namespace}/{job.name}", pod=pod.name)
            with suppress(NotFound, Conflict):
                await writes.delete(
                    self._client, PODS, name=pod.name, namespace=pod.namespace, uid=pod.uid
                )


async def job_exists(client: KubeClient, job: JobIdentity) -> bool:
    """Return whether the API server has the job. The caches may be outdated.

    Raises:
        KubeError: it could not be read.
        Undecodable: the answer is not an object.
    """
    try:
        raw = await reads.get(client, TRAINING_JOBS, name=job.name, namespace=job.namespace)
    except NotFound:
        return False
    return codec.identity(raw).uid == job.uid


def orphans_by_job(pods: Iterable[PodView]) -> dict[JobIdentity, list[PodView]]:
    """Return unowned pods with our names and labels that hold a node, by job. O(pods).

    The garbage collector handles pods with an owner.
    """
    orphans: dict[JobIdentity, list[PodView]] = defaultdict(list)
    for pod in pods:
        if pod.owner_uid or pod.finished or pod.terminating or LABEL_JOB_UID not in pod.labels:
            continue
        if facts_of(pod) is not None:
            labels = pod.labels
            job = JobIdentity(pod.namespace, labels[LABEL_JOB], labels[LABEL_JOB_UID])
            orphans[job].append(pod)
    return dict(orphans)
