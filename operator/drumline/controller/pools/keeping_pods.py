"""Placeholders for free nodes that are kept for gangs (`scheduler.autoscaling.kept_nodes`).

An autoscaler leaves a node alone on which a pending pod would fit, so such a pod stands for each
kept node. It needs no right to change nodes, and whoever leads next finds it and takes it away once
the node is kept no more. Those of a gang that starts go before its first pod is bound: beside that
pod they would fit nowhere, and Karpenter would add a node for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from drumline.controller.pools.demand_objects import ObjectSettings, pool_uid
from drumline.controller.pools.kept_nodes import keeping_pod
from drumline.controller.pools.placeholder_writes import PlaceholderWrites
from drumline.kube.client import KubeClient
from drumline.telemetry import logs
from drumline_api.base import LABEL_KEPT_NODE
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.kept_nodes import KeptNode, first_gangs

log = logs.get("drumline.controller.pools.keeping_pods")


class KeepingPods:
    """These pods.

    Args:
        client: fenced writes to the API server.
        settings: of the pods.
        clock: seconds since the epoch.
    """

    def __init__(
        self, *, client: KubeClient, settings: ObjectSettings, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._settings = settings
        self._pods = PlaceholderWrites(client=client, settings=settings, clock=clock)
        self._kept: tuple[KeptNode, ...] | None = None
        """As they were settled last; None: what an earlier leader left was not read yet."""

    async def settle(self, kept: Sequence[KeptNode], *, pools: Mapping[str, GpuPoolSpec]) -> None:
        """Make the pods those of the nodes that are kept.

        Raises:
            KubeError: some may be missing, or be there still.
        """
        if tuple(kept) == self._kept:
            return
        self._kept = None
        wanted = await self._wanted(kept, pools=pools)
        there = {pod.name: pod for pod in await self._pods.read(LABEL_KEPT_NODE)}
        for name in there.keys() - wanted.keys():
            await self._pods.delete(there[name])
        missing = [wanted[name] for name in sorted(wanted.keys() - there.keys())]
        for refusal in await self._pods.create(missing):
            # the gang waits for its victims all the same
            log.warning("free_nodes_not_kept", error=str(refusal))
        self._pods.forget_all_but(wanted.keys())
        await self._pods.mark(sorted(wanted), "stands for a node that is kept for a TrainingJob")
        self._kept = tuple(kept)

    async def _wanted(
        self, kept: Sequence[KeptNode], *, pools: Mapping[str, GpuPoolSpec]
    ) -> dict[str, dict[str, Any]]:
        """The pods by name."""
        names = sorted({each.node.pool for each in kept} & pools.keys())
        uids = {name: await pool_uid(self._client, name) for name in names}
        bodies = [
            keeping_pod(
                each,
                spec=pools[each.node.pool],
                pool_uid=uids[each.node.pool],
                namespace=self._settings.namespace,
                image=self._settings.image,
            )
            for each in kept
            if each.node.pool in uids
        ]
        return {body["metadata"]["name"]: body for body in bodies if body is not None}

    async def release(self, uids: Collection[str]) -> None:
        """Delete those of nodes that are kept for gangs which start.

        A pod has the label of the first gang of its node. Where that gang has other nodes, their
        pods go, too, and come again as they are settled.

        Raises:
            KubeError: some may still be there.
        """
        # what is there is not known to a new leader, nor behind a request that failed
        starting = uids if self._kept is None else first_gangs(self._kept, of_any=uids)
        if starting:
            self._kept = None
            await self._pods.delete_selected(f"{LABEL_KEPT_NODE} in ({','.join(sorted(starting))})")
