"""Create, mark and delete placeholder pods, whatever they represent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from drumline.controller.pools.demand_objects import REFUSALS, ObjectSettings
from drumline.controller.pools.placeholder_pods import unschedulable
from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, KubeError, NotFound, StatusError
from drumline.kube.kinds import PODS
from drumline.kube.views import PodView


class PlaceholderWrites:
    """Writes to the placeholders of one kind in the operator's namespace.

    Args:
        client: fenced client for the API server.
        settings: namespace and image of the pods.
        clock: seconds since the epoch.
    """

    def __init__(
        self, *, client: KubeClient, settings: ObjectSettings, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._namespace = settings.namespace
        self._clock = clock
        self._marked: set[str] = set()
        """Names of pods that this leader has marked as unschedulable."""

    async def read(self, label: str) -> tuple[PodView, ...]:
        """Return the placeholders with this label."""
        raw = await reads.list_all(
            self._client, PODS, namespace=self._namespace, label_selector=label
        )
        return tuple(map(codec.pod, raw))

    async def create(self, bodies: Sequence[dict[str, Any]]) -> Iterator[StatusError]:
        """Create pods. Return the answers that reject some of them, in their order.

        The iterator raises KubeError at a pod that may be missing for another reason.
        """
        outcomes = await writes.create_many(
            self._client, PODS, bodies=bodies, namespace=self._namespace
        )
        return _refusals(outcomes)

    async def mark(self, names: Sequence[str], message: str) -> None:
        """Mark pods as unschedulable for autoscalers, unless this leader has marked them.

        An earlier leader may have crashed before it could mark them.
        """
        body = unschedulable(message, now=self._clock())

        async def mark(name: str) -> None:
            with suppress(NotFound):
                await writes.merge_patch(
                    self._client,
                    PODS,
                    name=name,
                    body=body,
                    namespace=self._namespace,
                    subresource="status",
                )
                self._marked.add(name)

        await asyncio.gather(*(mark(name) for name in names if name not in self._marked))

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget the marks of all other pods. A new pod of the same name is marked again."""
        self._marked.intersection_update(names)

    async def delete(self, pod: PodView) -> None:
        """Delete one pod, identified by its uid."""
        with suppress(NotFound):
            await writes.delete(
                self._client,
                PODS,
                name=pod.name,
                uid=pod.uid,
                namespace=self._namespace,
                grace_seconds=0,
            )

    async def delete_selected(self, label_selector: str) -> None:
        """Delete all pods with this label, with one request."""
        await writes.delete_collection(
            self._client,
            PODS,
            namespace=self._namespace,
            label_selector=label_selector,
            grace_seconds=0,
        )


def _refusals(outcomes: Sequence[object]) -> Iterator[StatusError]:
    # A pod that exists already is not an error: an earlier attempt created it.
    for outcome in outcomes:
        if isinstance(outcome, REFUSALS):
            yield outcome
        elif isinstance(outcome, KubeError) and not isinstance(outcome, AlreadyExists):
            raise outcome
