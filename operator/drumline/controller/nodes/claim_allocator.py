"""Allocate devices to claims. No device is given to two claims.

A write counts before the watch shows it. If the answer to a write was lost, the API server is read,
and the same devices are written again. Other devices are never written instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from drumline.controller.nodes.devices import DeviceCache
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.device_codec import resource_claim
from drumline.kube.device_views import DeviceName
from drumline.kube.errors import KubeError, NotFound
from drumline.kube.kinds import RESOURCE_CLAIMS
from drumline.kube.views import Key

StatusOf = Callable[[Sequence[DeviceName]], dict[str, Any]]
"""Returns the status of a claim that has these devices."""


class ClaimAllocator:
    """Writes allocations of claims, and repeats those whose answer was lost.

    Args:
        client: fenced client for the API server.
        devices: devices and claims as last seen.
    """

    def __init__(self, client: KubeClient, devices: DeviceCache) -> None:
        self._client = client
        self._devices = devices

    async def settled(self, key: Key, *, owner_uid: str, status: StatusOf) -> bool | None:
        """Return whether the claim has its devices. None if no allocation was written for it.

        Args:
            key: key of the claim.
            owner_uid: uid of the pod that must own the claim.
            status: returns the status, in case the write must be repeated.

        Raises:
            KubeError: the API server did not read or write the claim.
        """
        # An earlier pod of the same name may still own a claim of this name. Its devices are not
        # ours.
        known = self._devices.claim(key)
        if known is not None and known.owner_uid != owner_uid:
            return False  # of an earlier pod of this name, which is being deleted
        if known is not None and known.devices:
            return True
        # Nothing seen yet. A write of this process may be on its way.
        assumed = self._devices.assumed(key)
        if not assumed:
            return None
        return await self._repeat(key, assumed, owner_uid=owner_uid, status=status)

    async def allocate(
        self,
        key: Key,
        devices: Sequence[DeviceName],
        *,
        claim: writes.Written,
        status: StatusOf,
    ) -> None:
        """Give a claim these devices, which are free.

        Args:
            key: namespace and name of the claim.
            devices: free devices of the pod's node.
            claim: the claim as the API server returned it.
            status: builds the claim's status from the devices.

        Raises:
            KubeError: the API server did not write the claim. The devices stay assumed if the write
                may still take effect.
        """
        # Assume before the write: another pod must not get the same devices meanwhile.
        self._devices.assume(key, tuple(devices))
        try:
            await self._write(key, claim, status(devices))
        except KubeError as error:
            if not error.maybe_done:
                self._devices.forget(key)
            raise

    async def _repeat(
        self, key: Key, devices: Sequence[DeviceName], *, owner_uid: str, status: StatusOf
    ) -> bool:
        """Return whether a claim has the devices of a write that was not seen.

        If the answer of that write was lost, it may still be on its way. So the same devices are
        written again. The later of both writes fails, because it finds another version of the
        claim.
        """
        try:
            raw = await reads.get(
                self._client, RESOURCE_CLAIMS, name=key.name, namespace=key.namespace
            )
        except NotFound:
            self._devices.forget(key)
            return False
        claim = resource_claim(raw)
        if claim.owner_uid != owner_uid:
            return False
        if not claim.devices:
            version = writes.Written(claim.uid, claim.resource_version)
            await self._write(key, version, status(devices))
        return True

    async def _write(self, key: Key, claim: writes.Written, status: dict[str, Any]) -> None:
        await writes.replace_status(
            self._client,
            RESOURCE_CLAIMS,
            name=key.name,
            namespace=key.namespace,
            uid=claim.uid,
            resource_version=claim.resource_version,
            status=status,
        )
