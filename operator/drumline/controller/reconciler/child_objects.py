"""Create the objects that a job's pods need before the first pod: Secret, domain, shared ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from drumline.controller.reconciler.protection import Protection
from drumline.controller.reconciler.shared_objects import SharedObjects
from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, Forbidden, NotFound
from drumline.kube.kinds import (
    COMPUTE_DOMAINS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    SECRETS,
    Resource,
)
from drumline.lifecycle.manifests import children
from drumline.lifecycle.manifests.compute_domains import compute_domain
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.plan.start_check import QUOTA_WORDS


class NoComputeDomains(Exception):  # noqa: N818 - a verdict about the cluster
    """The cluster does not serve ComputeDomains."""

    def __init__(self) -> None:
        super().__init__(
            "spec.computeDomain: the cluster does not serve ComputeDomains"
            f" ({COMPUTE_DOMAINS.api_version}); install NVIDIA's DRA driver, or remove the field"
        )


class ChildObjects:
    """Creates the objects that the pods of a job need.

    Args:
        client: fenced client for the API server.
        shared: the objects that all jobs of a namespace share.
        protection: the jobs' own disruption budgets.
        pods_of: returns the pods of a job in the cache.
        token: returns the token of a job.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        shared: SharedObjects,
        protection: Protection,
        pods_of: Callable[[Job], Collection[PodFacts]],
        token: Callable[[Job], bytes],
    ) -> None:
        self._client = client
        self._shared = shared
        self._protection = protection
        self._pods_of = pods_of
        self._token = token

    async def create(self, job: Job, *, shared_budget: bool) -> None:
        """Create the objects that the job's pods need. Call it before the first pod is created.

        Raises:
            NoComputeDomains: the job has a ComputeDomain, and the cluster does not serve them.
            KubeError: the API server did not create one of them.
        """
        # Shared objects first: a pod that started without its NetworkPolicy would be reachable for
        # a moment. A gang that starts again may have lost one, so the API server is asked.
        kinds = _shared_kinds(job, budget=shared_budget)
        again = (job.status.generation or 0) > 1
        await self._shared.ensure(job.namespace, kinds, asks=again)
        if shared_budget and not self._pods_of(job):
            await self._protection.retire_own(job)
        if job.has_agents:
            await self._create_secret(job)
        if job.spec.compute_domain is not None:
            try:
                await self._create(job, COMPUTE_DOMAINS, compute_domain(job))
            except NotFound as error:
                raise NoComputeDomains from error

    async def _create_secret(self, job: Job) -> None:
        """Create the Secret with the token, unless the job has it and the quota is full.

        If the Secret is gone nevertheless, the pods do not start, and their kubelet names it.
        """
        try:
            await self._create(job, SECRETS, children.token_secret(job, self._token(job)))
        except Forbidden as error:
            # Pods are made after the Secret, which lives as long as the job.
            name = children.token_secret_name(job)
            is_there = children.was_created(job, name=name) or bool(self._pods_of(job))
            if not (is_there and QUOTA_WORDS in error.message):
                raise

    async def _create(self, job: Job, resource: Resource, body: writes.Body) -> None:
        with suppress(AlreadyExists):  # its name carries the job's uid: it is ours
            await writes.create(self._client, resource, body=body, namespace=job.namespace)


def _shared_kinds(job: Job, *, budget: bool) -> tuple[Resource, ...]:
    """Return the kinds of shared objects that the job's pods need."""
    policy = (NETWORK_POLICIES,) if job.has_agents else ()
    return (*policy, POD_DISRUPTION_BUDGETS) if budget else policy
