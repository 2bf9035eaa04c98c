"""Create and delete a namespace's PodDisruptionBudget and NetworkPolicy.

They are created before the first pod that needs them. A sweep creates deleted ones again, and
deletes those that no pod needs any more.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, Forbidden, KubeError, NotFound, NotLeader
from drumline.kube.kinds import NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, Resource
from drumline.kube.views import PodView
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME, shared_budget, shared_policy
from drumline.lifecycle.plan.start_check import QUOTA_WORDS
from drumline.scope import EVERYWHERE, InstallationScope
from drumline.telemetry import logs
from drumline_api.base import LABEL_GANG_NETWORK, LABEL_PROTECTED

log = logs.get("drumline.controller.reconciler.shared_objects")

SWEEP_SECONDS: Final = 600.0
FRESH_SECONDS: Final = 30.0
"""Time for which an answer of the API server counts. Somebody may delete the object meanwhile."""
_KINDS: Final = (POD_DISRUPTION_BUDGETS, NETWORK_POLICIES)
_LABELS: Final = {POD_DISRUPTION_BUDGETS: LABEL_PROTECTED, NETWORK_POLICIES: LABEL_GANG_NETWORK}
"""A pod with this label needs the object."""


class _Shared(NamedTuple):
    """A shared object, by kind and namespace."""

    resource: Resource
    namespace: str


class _Confirmed(NamedTuple):
    """The API server's last answer that an object exists."""

    at: float
    namespace_uid: str


class SharedObjects:
    """Creates and deletes the shared objects of namespaces.

    Args:
        client: fenced client for the API server.
        settings: platform settings of pods.
        pods: iterates over the pods in these namespaces, from the cache.
        clock: monotonic seconds.
        scope: the namespaces that may have such objects.
        namespace_uid: returns the uid of a namespace as last seen, or '' if it is not known. A
            namespace that is created again has none of the objects.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        settings: PodSettings,
        pods: Callable[[], Iterable[PodView]],
        clock: Callable[[], float],
        scope: InstallationScope = EVERYWHERE,
        namespace_uid: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._client = client
        self._settings = settings
        self._namespace_uid = namespace_uid
        self._pods = pods
        self._clock = clock
        self._scope = scope
        self._confirmed: dict[_Shared, _Confirmed] = {}
        """Existing objects."""
        self._locks: dict[_Shared, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ensure(
        self, namespace: str, kinds: Iterable[Resource], *, asks: bool = False
    ) -> None:
        """Wait until the namespace has these objects.

        Args:
            namespace: namespace of the pods that will be created.
            kinds: the objects that these pods need.
            asks: whether to ask the API server although its last answer is recent. A gang that
                starts again may have lost the object.

        Raises:
            KubeError: the API server did not create one.
        """
        for kind in kinds:
            # One request at a time for each object: a thousand jobs may start in one namespace.
            shared = _Shared(kind, namespace)
            async with self._locks[shared]:
                uid = self._namespace_uid(namespace)
                if asks or not self._is_fresh(shared, uid):
                    await self._make(shared)
                    self._confirmed[shared] = _Confirmed(self._clock(), uid)

    async def run(self) -> None:
        """Sweep after a short delay and then every `SWEEP_SECONDS`. Never returns.

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
        """Create the objects that pods need, and delete those that no pod needs.

        An object that the API server refuses is left for the next time. The others are swept.

        Raises:
            KubeError: the objects could not be listed.
            NotLeader: this process may not write any more.
        """
        # Phase 1: the existing objects.
        there: set[_Shared] = set()
        unreadable: set[str] = set()
        for namespace in self._scope.reads:
            try:
                there |= await self._there(kind, namespace)
            except Forbidden:
                if namespace is None:
                    raise
                unreadable.add(namespace)  # it was deleted: the others are swept
        # Phase 2: the needed ones, by the pods in the cache.
        in_need = namespaces_in_need(self._pods(), kind) - unreadable
        needed = {_Shared(kind, namespace) for namespace in in_need}
        # Phase 3: delete under the lock, so that `ensure` does not count on an object that is
        # going.
        for shared in there - needed:
            with _refused_alone(shared):
                async with self._locks[shared]:
                    # The cache may not show pods that were created meanwhile.
                    if self._age(shared) >= 2 * FRESH_SECONDS:
                        await self._delete(shared)
        # Phase 4: create the missing ones.
        self._forget({shared for shared in self._locks if shared.resource is kind} - there - needed)
        for shared in needed - there:
            with _refused_alone(shared):
                await self.ensure(shared.namespace, (kind,), asks=True)

    async def _there(self, kind: Resource, namespace: str | None) -> set[_Shared]:
        named = f"metadata.name={SHARED_NAME}"
        listed = await reads.list_all(self._client, kind, namespace=namespace, field_selector=named)
        return {_Shared(kind, codec.identity(raw).namespace) for raw in listed}

    def _age(self, shared: _Shared) -> float:
        """Return the seconds since the API server confirmed that the object exists."""
        known = self._confirmed.get(shared)
        return math.inf if known is None else self._clock() - known.at

    def _is_fresh(self, shared: _Shared, uid: str) -> bool:
        """Return whether the object was confirmed recently in the namespace with this uid."""
        known = self._confirmed.get(shared)
        return (
            known is not None and known.namespace_uid == uid and self._age(shared) < FRESH_SECONDS
        )

    def _forget(self, gone: set[_Shared]) -> None:
        """Forget the objects of deleted namespaces."""
        for shared in gone:
            if self._age(shared) >= 2 * FRESH_SECONDS and not self._locks[shared].locked():
                self._confirmed.pop(shared, None)
                del self._locks[shared]

    async def _make(self, shared: _Shared) -> None:
        manifest = self._manifest(shared)
        kind, namespace = shared
        try:
            await writes.create(self._client, kind, body=manifest, namespace=namespace)
        except (AlreadyExists, Forbidden) as error:
            # A full quota refuses the create before the API server looks for the name.
            if isinstance(error, Forbidden) and not (
                QUOTA_WORDS in error.message and shared in await self._there(kind, namespace)
            ):
                raise
            if shared in self._confirmed:
                return
            # It is another leader's, perhaps of an earlier version.
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


@contextmanager
def _refused_alone(shared: _Shared) -> Generator[None]:
    """Log that an object was not written. A full quota of one namespace stops no other one."""
    try:
        yield
    except NotLeader:
        raise
    except (KubeError, codec.Undecodable) as error:
        kind, namespace = shared
        log.warning(
            "shared_object_not_swept", kind=kind.kind, namespace=namespace, error=str(error)
        )


def namespaces_in_need(pods: Iterable[PodView], kind: Resource) -> set[str]:
    """Return the namespaces with a pod that needs an object of this kind. O(pods)."""
    label = _LABELS[kind]
    return {pod.namespace for pod in pods if label in pod.labels and not pod.finished}
