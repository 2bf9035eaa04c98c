"""Binds the pods whose GPUs are devices: allocates a claim for each, and binds it then.

The scheduler has chosen the node; which of its devices a pod gets is decided here, one pod at a
time, so no two get the same. Every step is found again in what the API server shows, so after a
crash the next leader goes on where this one was. A pod for which too few devices are free waits for
those that end; the deadline of its job's start bounds that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from drumline.api.base import ANNOTATION_NODE, LABEL_JOB
from drumline.api.gpupool import GpuDevices
from drumline.controller.cache.cluster import ClusterCache
from drumline.controller.cache.pods import is_owned
from drumline.controller.conversion.admitted import MemberPositions, holds_assignment, positions_of
from drumline.controller.conversion.devices import (
    allocation,
    claim_manifest,
    claim_name,
    claim_status_of_pod,
)
from drumline.controller.conversion.pods import facts_of
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.codec import Undecodable
from drumline.kube.device_codec import resource_claim
from drumline.kube.device_views import DeviceName
from drumline.kube.errors import AlreadyExists, KubeError, NotFound, NotLeader
from drumline.kube.kinds import PODS, RESOURCE_CLAIMS
from drumline.kube.views import Key, PodView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.roles import gpus_of
from drumline.telemetry import logs

log = logs.get("drumline.controller.reconciler.device_binder")
LOOK_SECONDS: Final = 1.0
"""Pods, slices and claims are looked at so often; nothing else is done where none is unbound."""


class _PoolOfDevices(NamedTuple):
    """How the pods of a pool get their GPUs."""

    resource: str
    devices: GpuDevices


class DeviceBinder:
    """See the module.

    Args:
        client: fenced writes to the API server.
        state: jobs, pools and devices.
        pods: the pods in the namespaces of this installation.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        state: ClusterCache,
        pods: Callable[[], Iterable[PodView]],
    ) -> None:
        self._client = client
        self._state = state
        self._devices = state.nodes.devices
        self._pods = pods
        self._positions: dict[tuple[str, str], MemberPositions] = {}
        """By uid and version of a job: as this look has read them."""

    async def run(self) -> None:
        """Bind what is unbound, again and again; never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Bring every unbound pod as far as it can go now. O(pods)."""
        self._positions.clear()
        for pod in [pod for pod in self._pods() if _is_unbound(pod)]:
            pool = self._pool_of(pod)
            if pool is None:
                continue
            try:
                await self._bind(pod, pool)
            except NotLeader:
                raise
            except (KubeError, Undecodable) as error:
                log.warning("devices_not_allocated", pod=pod.name, why=str(error))

    def _pool_of(self, pod: PodView) -> _PoolOfDevices | None:
        """The pool of a member's pod; None: it is no member's, or its place is gone.

        Anybody who may create pods can write one with the labels, the owner and the node of a
        member. It is served where it stands for one, with no more GPUs than that one has.
        """
        job = self._state.jobs.get(f"{pod.namespace}/{pod.labels.get(LABEL_JOB, '')}")
        if job is None or job.uid != pod.owner_uid or not is_owned(pod):
            return None
        facts, assignment = facts_of(pod), job.status.assignment
        if facts is None or assignment is None or not holds_assignment(job):
            return None
        spec = self._state.pools.get(assignment.gpu_pool)
        if spec is None or spec.devices is None:
            return None
        gpus = gpus_of(job.spec, (facts.index,))
        if pod.requests.get(spec.gpu_resource, 0) != gpus:
            return None
        if not self._positions_of(job).has_member(facts):
            return None
        return _PoolOfDevices(resource=spec.gpu_resource, devices=spec.devices)

    def _positions_of(self, job: Job) -> MemberPositions:
        """O(members) once for each version of the job in a look."""
        key = (job.uid, job.resource_version)
        if key not in self._positions:
            self._positions[key] = positions_of(job)
        return self._positions[key]

    async def _bind(self, pod: PodView, pool: _PoolOfDevices) -> None:
        node, count = pod.annotations[ANNOTATION_NODE], pod.requests.get(pool.resource, 0)
        if count:
            if not await self._allocate(pod, pool, node=node, count=count):
                return
            await writes.merge_patch(
                self._client,
                PODS,
                name=pod.name,
                namespace=pod.namespace,
                subresource="status",
                body={"status": claim_status_of_pod(pod, resource=pool.resource)},
            )
        await writes.bind(self._client, pod.name, uid=pod.uid, namespace=pod.namespace, node=node)

    async def _allocate(self, pod: PodView, pool: _PoolOfDevices, *, node: str, count: int) -> bool:
        """Whether the pod's claim has its devices now."""
        key = Key(pod.namespace, claim_name(pod))
        known = self._devices.claim(key)
        if known is not None and known.owner_uid != pod.uid:
            return False  # of an earlier pod of this name, which is being deleted
        if known is not None and known.devices:
            return True
        if assumed := self._devices.assumed(key):
            return await self._allocate_again(pod, key, node=node, devices=assumed)
        free = self._devices.free(node, driver=pool.devices.driver)
        if len(free) < count:
            log.info("devices_awaited", pod=pod.name, node=node, free=len(free), wanted=count)
            return False
        claim = (
            await self._create(pod, pool, count=count)
            if known is None
            else writes.Written(known.uid, known.resource_version)
        )
        if claim is None:
            return False
        chosen = tuple(free[:count])
        self._devices.assume(key, chosen)
        try:
            await self._write(pod, claim, node=node, devices=chosen)
        except KubeError as error:
            if not error.maybe_done:
                self._devices.forget(key)
            raise
        return True

    async def _allocate_again(
        self, pod: PodView, key: Key, *, node: str, devices: Sequence[DeviceName]
    ) -> bool:
        """Whether a claim has the devices of a write that was not seen: the API server knows.

        Where its answer was lost it may be on its way yet. So the same devices are written: which
        of the two comes second finds another version of the claim.
        """
        try:
            raw = await reads.get(
                self._client, RESOURCE_CLAIMS, name=key.name, namespace=key.namespace
            )
        except NotFound:
            self._devices.forget(key)
            return False
        claim = resource_claim(raw)
        if claim.owner_uid != pod.uid:
            return False
        if not claim.devices:
            version = writes.Written(claim.uid, claim.resource_version)
            await self._write(pod, version, node=node, devices=devices)
        return True

    async def _write(
        self, pod: PodView, claim: writes.Written, *, node: str, devices: Sequence[DeviceName]
    ) -> None:
        await writes.replace_status(
            self._client,
            RESOURCE_CLAIMS,
            name=claim_name(pod),
            namespace=pod.namespace,
            uid=claim.uid,
            resource_version=claim.resource_version,
            status=allocation(pod, node=node, devices=devices),
        )

    async def _create(
        self, pod: PodView, pool: _PoolOfDevices, *, count: int
    ) -> writes.Written | None:
        """The new claim; None: there is one that was not seen yet."""
        body = claim_manifest(pod, devices=pool.devices, count=count)
        try:
            return await writes.create(
                self._client, RESOURCE_CLAIMS, body=body, namespace=pod.namespace
            )
        except AlreadyExists:
            return None


def _is_unbound(pod: PodView) -> bool:
    return not (pod.node_name or pod.terminating or pod.finished) and ANNOTATION_NODE in (
        pod.annotations
    )
