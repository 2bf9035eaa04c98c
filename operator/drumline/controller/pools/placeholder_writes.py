"""What is written of placeholder pods, whatever they stand for: made, marked and deleted."""

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
    """Of the pods of one kind in the operator's namespace.

    Args:
        client: fenced writes to the API server.
        settings: of the pods.
        clock: seconds since the epoch.
    """

    def __init__(
        self, *, client: KubeClient, settings: ObjectSettings, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._namespace = settings.namespace
        self._clock = clock
        self._marked: set[str] = set()
        """Names of those that this leader has marked as unschedulable."""

    async def read(self, label: str) -> tuple[PodView, ...]:
        """Those with this label."""
        raw = await reads.list_all(
            self._client, PODS, namespace=self._namespace, label_selector=label
        )
        return tuple(map(codec.pod, raw))

    async def create(self, bodies: Sequence[dict[str, Any]]) -> Iterator[StatusError]:
        """Make these; returns why some are refused, in their order.

        The iterator raises KubeError where it comes to a pod that may be missing for another
        reason.
        """
        outcomes = await writes.create_many(
            self._client, PODS, bodies=bodies, namespace=self._namespace
        )
        return _refusals(outcomes)

    async def mark(self, names: Sequence[str], message: str) -> None:
        """Have autoscalers see those of these that this leader has not marked yet.

        A crashed leader may have failed to.
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
        """The others are no more: one of the same name is marked again."""
        self._marked.intersection_update(names)

    async def delete(self, pod: PodView) -> None:
        """This very pod."""
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
        """With one request."""
        await writes.delete_collection(
            self._client,
            PODS,
            namespace=self._namespace,
            label_selector=label_selector,
            grace_seconds=0,
        )


def _refusals(outcomes: Sequence[object]) -> Iterator[StatusError]:
    for outcome in outcomes:
        if isinstance(outcome, REFUSALS):
            yield outcome
        elif isinstance(outcome, KubeError) and not isinstance(outcome, AlreadyExists):
            raise outcome
