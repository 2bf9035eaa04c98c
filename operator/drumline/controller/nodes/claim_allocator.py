"""Writes which devices a claim has; no device is given to two claims.

What was written counts before the watch shows it. Where the answer to a write was lost, the API
server is asked: the same devices are written again, never others.
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
"""The status of a claim that has these devices."""


class ClaimAllocator:
    """See the module.

    Args:
        client: fenced writes to the API server.
        devices: devices and claims as last seen.
    """

    def __init__(self, client: KubeClient, devices: DeviceCache) -> None:
        self._client = client
        self._devices = devices

    async def settled(self, key: Key, *, owner_uid: str, status: StatusOf) -> bool | None:
        """Whether the claim has its devices; None: nothing has been written for it.

        Args:
            key: of the claim.
            owner_uid: of the pod that it has to be of.
            status: as it was written, should that have to be repeated.

        Raises:
            KubeError: the API server did not do it.
        """
        known = self._devices.claim(key)
        if known is not None and known.owner_uid != owner_uid:
            return False  # of an earlier pod of this name, which is being deleted
        if known is not None and known.devices:
            return True
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

        Raises:
            KubeError: the API server did not do it.
        """
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
