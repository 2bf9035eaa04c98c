"""Read Karpenter's objects, if they may be read, to explain why nodes do not come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from drumline.controller.pools.karpenter import (
    NodeClaimView,
    NodePoolView,
    decode_claim,
    decode_pool,
    trouble_of,
)
from drumline.kube import reads
from drumline.kube.client import KubeClient
from drumline.kube.errors import KubeError
from drumline.kube.kinds import NODE_CLAIMS, NODE_POOLS, Resource
from drumline.telemetry import logs
from drumline_api.gpupool import GpuPoolSpec

log = logs.get("drumline.controller.pools.karpenter_reports")
T = TypeVar("T")


class KarpenterReports:
    """NodeClaims and NodePools as they were last read.

    Args:
        client: client for the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._claims: tuple[NodeClaimView, ...] = ()
        self._pools: tuple[NodePoolView, ...] = ()
        self._problem = ""

    async def look(self) -> None:
        """Read the objects. Without Karpenter, or without the right to, there are none."""
        try:
            self._claims = await self._read(NODE_CLAIMS, decode_claim)
            self._pools = await self._read(NODE_POOLS, decode_pool)
        # Log a problem once, not with every read.
        except KubeError as error:
            self._claims, self._pools = (), ()
            if str(error) != self._problem:
                log.info("karpenter_not_read", why=str(error))
            self._problem = str(error)

    def answer(self, spec: GpuPoolSpec) -> str:
        """Return why nodes of this pool do not come, or '' if that is not known."""
        return trouble_of(claims=self._claims, pools=self._pools, selector=spec.node_selector)

    async def _read(self, resource: Resource, decode: Callable[[bytes], T]) -> tuple[T, ...]:
        views: list[T] = []
        for item in await reads.list_all(self._client, resource):
            try:
                views.append(decode(item))
            except msgspec.MsgspecError as error:  # of a version that nobody has seen yet
                log.debug("karpenter_object_unreadable", kind=resource.kind, why=str(error))
        return tuple(views)
