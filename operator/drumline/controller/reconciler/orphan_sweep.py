"""Deletes pods of jobs that are gone and that the garbage collector leaves alone.

`kubectl delete --cascade=orphan` takes the owner references off a job's pods. While an operator
leads, it deletes them as soon as the job is being deleted; where none did they would hold their
GPUs for ever, because nothing else knows of them. So they are looked for at the start of a term,
and now and then.
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
    """Looks for pods without an owner whose job does not exist.

    Args:
        client: fenced writes to the API server.
        pods: the pods in namespaces of ours, as the cache shows them.
        uid_of: the uid of a job by its key, as the cache shows it; None without such a job.
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
        """Sweep at once and every `SWEEP_SECONDS`; never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Look once. What cannot be deleted is left for the next time.

        Raises:
            NotLeader: this process may not write any more.
        """
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
    """Whether the API server has the job; the caches are of different moments.

    Raises:
        KubeError: it could not be read.
        Undecodable: the answer is no object.
    """
    try:
        raw = await reads.get(client, TRAINING_JOBS, name=job.name, namespace=job.namespace)
    except NotFound:
        return False
    return codec.identity(raw).uid == job.uid


def orphans_by_job(pods: Iterable[PodView]) -> dict[JobIdentity, list[PodView]]:
    """Pods that are named and labelled as ours, hold a node and have no owner, by their job.

    A pod with an owner is the garbage collector's. O(pods).
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
