"""Placeholders for free nodes that are kept for gangs (`scheduler.autoscaling.kept_nodes`).

An autoscaler does not remove a node on which a pending pod would fit. So one such pod represents
each kept node. It requires no right to change nodes. The next leader finds it, and deletes it when
the node may be removed. The pods of a starting gang are deleted before its first pod is bound.
Beside that pod they would fit nowhere, and Karpenter would add a node for them.
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
    """The placeholders of kept nodes.

    Args:
        client: fenced client for the API server.
        settings: namespace and image of the pods.
        clock: seconds since the epoch.
    """

    def __init__(
        self, *, client: KubeClient, settings: ObjectSettings, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._settings = settings
        self._pods = PlaceholderWrites(client=client, settings=settings, clock=clock)
        self._kept: tuple[KeptNode, ...] | None = None
        """Kept nodes as settled last. None if an earlier leader's pods were not read yet."""

    async def settle(self, kept: Sequence[KeptNode], *, pools: Mapping[str, GpuPoolSpec]) -> None:
        """Create and delete pods until they match the kept nodes.

        Raises:
            KubeError: some may be missing, or may still exist.
        """
        if tuple(kept) == self._kept:
            return
        # None until the end: after an error the next call reads the pods again.
        self._kept = None
        wanted = await self._wanted(kept, pools=pools)
        # Delete before create. A pod's requests cannot change, so a changed share is another pod.
        there = {pod.name: pod for pod in await self._pods.read(LABEL_KEPT_NODE)}
        for name in there.keys() - wanted.keys():
            await self._pods.delete(there[name])
        missing = [wanted[name] for name in sorted(wanted.keys() - there.keys())]
        for refusal in await self._pods.create(missing):
            # the gang waits for its victims all the same
            log.warning("free_nodes_not_kept", error=str(refusal))
        # Autoscalers ignore a pod until its condition says that it is unschedulable.
        self._pods.forget_all_but(wanted.keys())
        await self._pods.mark(sorted(wanted), "stands for a node that is kept for a TrainingJob")
        self._kept = tuple(kept)

    async def _wanted(
        self, kept: Sequence[KeptNode], *, pools: Mapping[str, GpuPoolSpec]
    ) -> dict[str, dict[str, Any]]:
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
        """Delete the pods of nodes that are kept for starting gangs.

        A pod has the label of the first gang of its node. If that gang has other nodes, their pods
        are deleted too, and `settle` creates them again.

        Raises:
            KubeError: some may still exist.
        """
        # The existing pods are not known to a new leader, nor after a failed request. Then delete
        # by the uids of all starting gangs.
        starting = uids if self._kept is None else first_gangs(self._kept, of_any=uids)
        if starting:
            self._kept = None
            await self._pods.delete_selected(f"{LABEL_KEPT_NODE} in ({','.join(sorted(starting))})")
