"""Control which pods a drain may evict: labels of pods, and the budget of a large gang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from drumline.controller.reconciler.job_memory import JobMemory
from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, Conflict, NotFound
from drumline.kube.kinds import POD_DISRUPTION_BUDGETS, PODS
from drumline.lifecycle.manifests import children
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.actions import LabelPods
from drumline.telemetry import logs
from drumline_api.base import LABEL_JOB_UID, LABEL_PROTECTED

log = logs.get("drumline.controller.reconciler.protection")


class Protection:
    """Writes pod labels and the jobs' own disruption budgets.

    Args:
        client: fenced client for the API server.
        pods_of: returns the pods of a job in the cache.
    """

    def __init__(
        self, client: KubeClient, *, pods_of: Callable[[Job], Collection[PodFacts]]
    ) -> None:
        self._client = client
        self._pods_of = pods_of

    def is_shared(self, job: Job) -> bool:
        """Return whether new pods of the job go under the namespace's budget.

        Pods of an earlier version are under a budget of the job, which selects new pods too. A pod
        with two budgets cannot be evicted at all.
        """
        return job.wanted <= children.SHARED_BUDGET_NODES and all(
            pod.protected is not None for pod in self._pods_of(job)
        )

    async def label(self, job: Job, action: LabelPods, memory: JobMemory, *, now: float) -> None:
        """Put pods under the namespace's budget, or release them from it.

        A label that was written a moment ago, and that the cache does not show yet, is not written
        again.

        Args:
            job: the job with its present status.
            action: pods, and the label's value.
            memory: labels that were recently written.
            now: Unix time in seconds.

        Raises:
            KubeError: the API server did not write a label.
        """
        wanted = [(pod, True) for pod in action.protect] + [(pod, False) for pod in action.release]
        due = [
            (pod, protected)
            for pod, protected in wanted
            if not memory.is_labelled(pod.uid, protected=protected, now=now)
        ]
        await asyncio.gather(*(self._label(job, pod, protected=value) for pod, value in due))
        known = {pod.uid for pod in self._pods_of(job)}
        memory.labelled = {uid: at for uid, at in memory.labelled.items() if uid in known}
        memory.labelled |= {pod.uid: (protected, now) for pod, protected in due}
        if due:
            log.info(
                "members_protected",
                job=job.key,
                protected=[pod.name for pod, protected in due if protected],
                evictable=[pod.name for pod, protected in due if not protected],
            )

    async def _label(self, job: Job, pod: PodFacts, *, protected: bool) -> None:
        labels = {LABEL_PROTECTED: str(protected).lower()}
        with suppress(NotFound, Conflict):  # it is gone, or another has its name
            await writes.merge_patch(
                self._client,
                PODS,
                name=pod.name,
                namespace=job.namespace,
                body={"metadata": {"uid": pod.uid, "labels": labels}},
            )

    async def protect(self, job: Job, evictable: int, memory: JobMemory) -> None:
        """Create the job's own budget, or update it, also one of an earlier leader.

        Args:
            job: the job with its present status.
            evictable: number of members whose eviction the budget allows.
            memory: what was recently written for this job.

        Raises:
            KubeError: the API server did not write the budget.
        """
        # Forget first: if the write fails, the state of the budget is not known.
        generation, size = job.status.generation or 0, job.wanted
        known = memory.evictable.pop(size, None)
        budget = children.disruption_budget(job, evictable=evictable)
        exists = known is not None and memory.protected_generation == generation
        if not exists:
            try:
                await writes.create(
                    self._client, POD_DISRUPTION_BUDGETS, body=budget, namespace=job.namespace
                )
                known = evictable
            # It exists already, perhaps with another number: update it below.
            except AlreadyExists:
                exists = True
        if exists and known != evictable:
            await self._patch(job, budget, {"minAvailable": budget["spec"]["minAvailable"]})
        memory.evictable[size], memory.protected_generation = evictable, generation
        log.info("members_protected", job=job.key, size=size, evictable=evictable)

    async def retire_own(self, job: Job) -> None:
        """Make the own budget of a restarting job of an earlier version select no pods.

        Raises:
            KubeError: the API server did not write the budget.
        """
        if (job.status.generation or 0) > 1:
            with suppress(NotFound):
                nothing = {"selector": {"matchLabels": {LABEL_JOB_UID: "retired"}}}
                await self._patch(job, children.disruption_budget(job), nothing)

    async def _patch(self, job: Job, budget: children.Json, spec: children.Json) -> None:
        await writes.merge_patch(
            self._client,
            POD_DISRUPTION_BUDGETS,
            name=budget["metadata"]["name"],
            namespace=job.namespace,
            body={"spec": spec},
        )
