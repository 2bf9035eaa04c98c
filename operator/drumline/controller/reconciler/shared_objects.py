"""Makes a namespace's PodDisruptionBudget and NetworkPolicy, and deletes them.

They are made before the first pod that needs them. Now and then all of them are looked at: what
somebody deleted is made again, and what no pod needs any more is deleted.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, Forbidden, KubeError, NotFound, NotLeader
from drumline.kube.kinds import NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, Resource
from drumline.kube.views import PodView
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME, shared_budget, shared_policy
from drumline.scope import EVERYWHERE, InstallationScope
from drumline.telemetry import logs
from drumline_api.base import LABEL_GANG_NETWORK, LABEL_PROTECTED

log = logs.get("drumline.controller.reconciler.shared_objects")

SWEEP_SECONDS: Final = 600.0
FRESH_SECONDS: Final = 30.0
"""So long what the API server said holds: somebody may delete a namespace and make it again."""
_KINDS: Final = (POD_DISRUPTION_BUDGETS, NETWORK_POLICIES)
_LABELS: Final = {POD_DISRUPTION_BUDGETS: LABEL_PROTECTED, NETWORK_POLICIES: LABEL_GANG_NETWORK}
"""A pod with this label needs the object."""


class _Shared(NamedTuple):
    """One such object."""

    resource: Resource
    namespace: str


class SharedObjects:
    """See the module.

    Args:
        client: fenced writes to the API server.
        settings: what the platform decides about pods.
        pods: the pods in these namespaces, as the cache shows them.
        scope: the namespaces that may have such objects.
        clock: seconds; never goes back.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        settings: PodSettings,
        pods: Callable[[], Iterable[PodView]],
        clock: Callable[[], float],
        scope: InstallationScope = EVERYWHERE,
    ) -> None:
        self._client = client
        self._settings = settings
        self._pods = pods
        self._clock = clock
        self._scope = scope
        self._confirmed: dict[_Shared, float] = {}
        """What is there, with the time when the API server said so last."""
        self._locks: dict[_Shared, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ensure(
        self, namespace: str, kinds: Iterable[Resource], *, asks: bool = False
    ) -> None:
        """Return once the namespace has these.

        Args:
            namespace: whose pods are about to be created.
            kinds: what these pods need.
            asks: whether the API server is asked though it said so a moment ago: a gang that starts
                again has lost something.

        Raises:
            KubeError: the API server did not make one.
        """
        for kind in kinds:
            shared = _Shared(kind, namespace)
            async with self._locks[shared]:
                if asks or self._age(shared) >= FRESH_SECONDS:
                    await self._make(shared)
                    self._confirmed[shared] = self._clock()

    async def run(self) -> None:
        """Sweep soon and then every `SWEEP_SECONDS`; never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        await asyncio.sleep(2 * FRESH_SECONDS)  # a new leader has other things to do
        while True:
            for kind in _KINDS:
                try:
                    await self.sweep(kind)
                except NotLeader:
                    raise
                except (KubeError, codec.Undecodable) as error:
                    log.warning("shared_objects_not_swept", kind=kind.kind, error=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self, kind: Resource) -> None:
        """Make what pods need and is not there; delete what is there and no pod needs.

        Raises:
            KubeError: the API server did not do it; the rest is left for the next time.
        """
        there: set[_Shared] = set()
        unreadable: set[str] = set()
        for namespace in self._scope.reads:
            try:
                there |= await self._there(kind, namespace)
            except Forbidden:
                if namespace is None:
                    raise
                unreadable.add(namespace)  # it was deleted: the others are swept
        in_need = namespaces_in_need(self._pods(), kind) - unreadable
        needed = {_Shared(kind, namespace) for namespace in in_need}
        for shared in there - needed:
            async with self._locks[shared]:
                # Of pods that were created meanwhile the cache may not know yet.
                if self._age(shared) >= 2 * FRESH_SECONDS:
                    await self._delete(shared)
        self._forget({shared for shared in self._locks if shared.resource is kind} - there - needed)
        for shared in needed - there:
            await self.ensure(shared.namespace, (kind,), asks=True)

    async def _there(self, kind: Resource, namespace: str | None) -> set[_Shared]:
        named = f"metadata.name={SHARED_NAME}"
        listed = await reads.list_all(self._client, kind, namespace=namespace, field_selector=named)
        return {_Shared(kind, codec.identity(raw).namespace) for raw in listed}

    def _age(self, shared: _Shared) -> float:
        """Seconds since the API server said that it is there."""
        return self._clock() - self._confirmed.get(shared, -math.inf)

    def _forget(self, gone: set[_Shared]) -> None:
        """Of namespaces that are gone nothing is kept."""
        for shared in gone:
            if self._age(shared) >= 2 * FRESH_SECONDS and not self._locks[shared].locked():
                self._confirmed.pop(shared, None)
                del self._locks[shared]

    async def _make(self, shared: _Shared) -> None:
        manifest = self._manifest(shared)
        kind, namespace = shared
        try:
            await writes.create(self._client, kind, body=manifest, namespace=namespace)
        except AlreadyExists:
            if shared in self._confirmed:
                return
            # of another leader, perhaps of an earlier version
            body = {"spec": manifest["spec"]}
            await writes.merge_patch(
                self._client, kind, name=SHARED_NAME, namespace=namespace, body=body
            )
        log.info("shared_object_made", kind=kind.kind, namespace=namespace)

    async def _delete(self, shared: _Shared) -> None:
        self._confirmed.pop(shared, None)
        log.info("shared_object_deleted", kind=shared.resource.kind, namespace=shared.namespace)
        with suppress(NotFound):
            await writes.delete(
                self._client,
                shared.resource,
                name=SHARED_NAME,
                namespace=shared.namespace,
                uid=None,
            )

    def _manifest(self, shared: _Shared) -> dict[str, object]:
        if shared.resource is POD_DISRUPTION_BUDGETS:
            return shared_budget(shared.namespace)
        return shared_policy(
            shared.namespace,
            operator_namespace=self._settings.operator_namespace,
            metrics_from=self._settings.metrics_from,
        )


def namespaces_in_need(pods: Iterable[PodView], kind: Resource) -> set[str]:
    """Namespaces with a pod that needs their object of this kind. O(pods)."""
    label = _LABELS[kind]
    return {pod.namespace for pod in pods if label in pod.labels and not pod.finished}
