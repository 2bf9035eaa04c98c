"""Bind pods that get devices by claims, GPUs or a ComputeDomain's channel, once they have them.

The scheduler has chosen the node. This module chooses the devices, for one pod at a time, so no two
pods get the same device. The API server shows every step, so after a crash the next leader
continues with the next step. A pod waits while too few devices are free. The deadline of its job's
start limits that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from drumline.controller.nodes.claim_allocator import ClaimAllocator
from drumline.controller.nodes.device_conversion import (
    allocation,
    channel_allocation,
    claim_manifest,
    claim_name,
    claim_status_of_pod,
)
from drumline.controller.nodes.pod_conversion import facts_of
from drumline.controller.nodes.pods import is_owned
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.admitted import MemberPositions, holds_assignment, positions_of
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.codec import Undecodable, custom_object
from drumline.kube.device_views import ChannelRequest, DeviceName
from drumline.kube.errors import AlreadyExists, KubeError, NotFound, NotLeader
from drumline.kube.kinds import COMPUTE_DOMAINS, PODS, RESOURCE_CLAIMS
from drumline.kube.views import Key, PodView
from drumline.lifecycle.manifests.children import child_name
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import indices_by_pool
from drumline.lifecycle.model.roles import gpus_of, has_channel
from drumline.telemetry import logs
from drumline_api.base import ANNOTATION_NODE, LABEL_JOB, RESOURCE_CHANNEL
from drumline_api.gpupool import GpuDevices

log = logs.get("drumline.controller.reconciler.device_binder")
LOOK_SECONDS: Final = 1.0
"""Time between two looks at unbound pods."""
_AWAITED: Final = "devices_awaited"
_NOT_ALLOCATED: Final = "devices_not_allocated"


class _PoolOfDevices(NamedTuple):
    """The way in which the pods of a pool get their GPUs."""

    resource: str
    devices: GpuDevices


class _Needs(NamedTuple):
    """The devices that a pod gets by claims: GPUs, a channel, or both."""

    pool: _PoolOfDevices | None
    """None if a device plugin provides the GPUs."""
    channel_of: Job | None
    """Job whose ComputeDomain provides the channel. None without a channel."""


class DeviceBinder:
    """Binds the unbound pods of jobs once their claims have devices.

    Args:
        client: fenced client for the API server.
        state: jobs, pools and devices.
        pods: iterates over the pods in the namespaces of this installation.
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
        self._allocator = ClaimAllocator(client, state.nodes.devices)
        self._domains: dict[str, str] = {}
        """Uid of each job's ComputeDomain as read in this look, by uid of the job."""
        self._positions: dict[tuple[str, str], MemberPositions] = {}
        """Members of each job as computed in this look, by uid and version of the job."""
        self._waiting: dict[str, tuple[str, str]] = {}
        """Event and reason of each pod that waits in this look, by uid."""
        self._waited: dict[str, tuple[str, str]] = {}
        """Events and reasons of the look before, by uid of the pod."""

    async def run(self) -> None:
        """Bind unbound pods repeatedly. Never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def why(self, pod_uid: str) -> str:
        """Return why a pod is not bound as `reason: sentence`, or '' if it waits for no device."""
        _, why = self._waiting.get(pod_uid) or self._waited.get(pod_uid) or ("", "")
        return why

    async def look(self) -> None:
        """Bring every unbound pod as far as possible now. O(pods).

        Pods are bound one after the other. After a write of a namespace that had no answer, its
        other pods wait for the next look, because those of other namespaces would wait as long.
        """
        # Values of an earlier look may be outdated.
        self._positions.clear()
        self._domains.clear()
        self._waited, self._waiting = self._waiting, {}
        unanswered = set[str]()
        for pod in [pod for pod in self._pods() if _is_unbound(pod)]:
            needs = self._needs_of(pod) if pod.namespace not in unanswered else None
            if needs is None:
                continue
            try:
                await self._bind(pod, needs)
            except NotLeader:
                raise
            except (KubeError, Undecodable) as error:
                self._log(pod, _NOT_ALLOCATED, why=str(error))
                if isinstance(error, KubeError) and error.retryable:
                    unanswered.add(pod.namespace)

    def _log(self, pod: PodView, event: str, *, why: str) -> None:
        """Log why a pod waits, once. 10,000 pods may wait, and each look finds them again."""
        reason = "DevicesAwaited" if event == _AWAITED else "DevicesNotAllocated"
        self._waiting[pod.uid] = event, f"{reason}: {why}"
        if self._waited.get(pod.uid, ("", ""))[0] != event:
            report = log.info if event == _AWAITED else log.warning
            report(event, pod=f"{pod.namespace}/{pod.name}", why=why)

    def _needs_of(self, pod: PodView) -> _Needs | None:
        """Return the devices that a member's pod gets by claims. None if it is not a member's pod.

        Users who may create pods can write one with the labels, the owner and the node of a member.
        Such a pod is served only in place of a member, with no more devices than the member has.
        """
        # Phase 1: the pod must belong to a job that holds its places.
        job = self._state.jobs.get(f"{pod.namespace}/{pod.labels.get(LABEL_JOB, '')}")
        if job is None or job.uid != pod.owner_uid or not is_owned(pod):
            return None
        facts, assignment = facts_of(pod), job.status.assignment
        if facts is None or assignment is None or not holds_assignment(job):
            return None
        # Phase 2: it must request exactly the devices of its member. Forged pods could ask for
        # more.
        (pool,) = indices_by_pool(job.status, (facts.index,))
        spec = self._state.pools.get(pool)
        gpus = gpus_of(job.spec, (facts.index,))
        if spec is None or pod.requests.get(spec.gpu_resource, 0) != gpus:
            return None
        channel = has_channel(job.spec, facts.index)
        if channel != bool(pod.requests.get(RESOURCE_CHANNEL)):
            return None
        # Phase 3: its index, generation and node must be those of a live member.
        if not self._positions_of(job).has_member(facts):
            return None
        devices = spec.devices
        if devices is None and not channel:
            return None
        pool = None if devices is None else _PoolOfDevices(spec.gpu_resource, devices)
        return _Needs(pool=pool, channel_of=job if channel else None)

    def _positions_of(self, job: Job) -> MemberPositions:
        """Return the members of a job. O(members) once for each version of the job in a look."""
        key = (job.uid, job.resource_version)
        if key not in self._positions:
            self._positions[key] = positions_of(job)
        return self._positions[key]

    async def _bind(self, pod: PodView, needs: _Needs) -> None:
        # Order of kube-scheduler: allocate, name the claim in the pod's status, bind. A kubelet
        # that sees a bound pod without its claim would start it without devices.
        node = pod.annotations[ANNOTATION_NODE]
        if needs.channel_of is not None and not await self._allocate_channel(pod, needs.channel_of):
            return
        pool = needs.pool
        if pool is not None and (count := pod.requests.get(pool.resource, 0)):
            if not await self._allocate_gpus(pod, pool, count=count):
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

    async def _allocate_gpus(self, pod: PodView, pool: _PoolOfDevices, *, count: int) -> bool:
        """Return whether the pod's claim has its devices now."""
        key, node = Key(pod.namespace, claim_name(pod)), pod.annotations[ANNOTATION_NODE]
        status = partial(_allocation, pod, node)
        # Phase 1: a claim that has them, or a write of ours whose answer was lost.
        settled = await self._allocator.settled(key, owner_uid=pod.uid, status=status)
        if settled is not None:
            return settled
        # Phase 2: choose free devices of the node.
        free = self._devices.free(node, driver=pool.devices.driver)
        if len(free) < count:
            self._log(pod, _AWAITED, why=f"{len(free)} of {count} devices of {node} are free")
            return False
        # Phase 3: create the claim if needed, and allocate.
        known = self._devices.claim(key)
        claim = (
            await self._create(pod, pool, count=count)
            if known is None
            else writes.Written(known.uid, known.resource_version)
        )
        if claim is None:
            return False
        await self._allocator.allocate(key, free[:count], claim=claim, status=status)
        return True

    async def _allocate_channel(self, pod: PodView, job: Job) -> bool:
        """Return whether the pod's claim has a channel of the job's ComputeDomain now.

        Kubernetes makes the claim from the template that the driver makes for the domain. Users who
        may create templates can forge one of that name. So the claim is checked: it gets one
        channel of the job's own domain or nothing.
        """
        # Phase 1: the claim may not exist yet, or may ask for something else.
        claim = self._devices.claim(Key(pod.namespace, pod.channel_claim))
        if claim is None:
            self._log(pod, _AWAITED, why="the claim of its channel does not exist yet")
            return False
        if claim.channel is None:
            self._log(pod, _NOT_ALLOCATED, why=f"claim {claim.name} is not for one channel alone")
            return False
        key, node = Key(claim.namespace, claim.name), pod.annotations[ANNOTATION_NODE]
        status = partial(_channel_allocation, pod, claim.channel, node)
        settled = await self._allocator.settled(key, owner_uid=pod.uid, status=status)
        if settled is not None:
            return settled
        # Phase 2: choose a free channel.
        free = self._devices.free_channels(node)
        if not free:
            self._log(pod, _AWAITED, why=f"no channel of {node} is free")
            return False
        # Phase 3: check the domain as late as possible, because it takes a request.
        if claim.channel.domain != await self._domain_of(job):
            why = f"claim {claim.name} is for a channel of another ComputeDomain"
            self._log(pod, "channel_of_another_domain", why=why)
            return False
        version = writes.Written(claim.uid, claim.resource_version)
        await self._allocator.allocate(key, free[:1], claim=version, status=status)
        return True

    async def _domain_of(self, job: Job) -> str:
        """Return the uid of the job's ComputeDomain, or '' if it does not exist."""
        if job.uid not in self._domains:
            try:
                raw = await reads.get(
                    self._client, COMPUTE_DOMAINS, name=child_name(job), namespace=job.namespace
                )
            except NotFound:
                return ""
            self._domains[job.uid] = custom_object(raw).uid
        return self._domains[job.uid]

    async def _create(
        self, pod: PodView, pool: _PoolOfDevices, *, count: int
    ) -> writes.Written | None:
        """Create the claim. Return None if one exists that the watch has not shown yet."""
        body = claim_manifest(pod, devices=pool.devices, count=count)
        try:
            return await writes.create(
                self._client, RESOURCE_CLAIMS, body=body, namespace=pod.namespace
            )
        except AlreadyExists:
            return None


def _allocation(pod: PodView, node: str, devices: Sequence[DeviceName]) -> dict[str, Any]:
    return allocation(pod, node=node, devices=devices)


def _channel_allocation(
    pod: PodView, channel: ChannelRequest, node: str, devices: Sequence[DeviceName]
) -> dict[str, Any]:
    return channel_allocation(pod, channel, node=node, devices=devices)


def _is_unbound(pod: PodView) -> bool:
    return not (pod.node_name or pod.terminating or pod.finished) and ANNOTATION_NODE in (
        pod.annotations
    )
