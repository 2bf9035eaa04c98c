"""The mode Placeholders: one unbound pod for each node of a demand.

All pods of a demand are created at once, and deleted with one request. So an autoscaler sees the
whole gang or none of it. Its answer is the newest event about one of the pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from drumline.controller.pools.autoscaling import demand_name, demands_in, placeholders_of
from drumline.controller.pools.demand_objects import (
    REFUSALS,
    DemandInput,
    ObjectSettings,
    bounded_answer,
    pool_uid,
)
from drumline.controller.pools.placeholder_writes import PlaceholderWrites
from drumline.kube.client import KubeClient
from drumline.kube.errors import StatusError
from drumline.kube.events import events_about
from drumline.kube.views import EventView, PodView
from drumline_api.base import LABEL_NODE_DEMAND
from drumline_scheduler.autoscaling.node_demands import NodeDemand

_ASKED: Final = LABEL_NODE_DEMAND


class Placeholders:
    """The placeholders of all demands (`DemandObjects`).

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
        self._there: tuple[PodView, ...] = ()
        """Objects as they were read last."""
        self._refused: dict[str, str] = {}
        """Reason for which the API server rejects a demand's pods, by the demand's name."""

    async def read(self) -> tuple[NodeDemand, ...]:
        """Read the existing pods. Return the demands whose placeholders all exist."""
        self._there = await self._pods.read(_ASKED)
        return demands_in(self._there)

    async def keep_only(self, demands: Collection[NodeDemand]) -> None:
        """Delete the pods of other demands."""
        names = {demand_name(each): len(each.shares) for each in demands}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        self._pods.forget_all_but(
            {f"{name}-{i}" for name, count in names.items() for i in range(count)}
        )
        # Demands of one gang follow each other, so pods of an older demand may have the label of a
        # current gang.
        stale = [pod for pod in self._there if _demand_of(pod) not in names]
        for uid in sorted({pod.labels[_ASKED] for pod in stale}):
            pods = [pod for pod in stale if pod.labels[_ASKED] == uid]
            await self._delete(uid, pods, is_asked=any(each.uid == uid for each in demands))

    async def _delete(self, uid: str, stale: Iterable[PodView], *, is_asked: bool) -> None:
        """Delete with one request, or one by one if newer pods of the same gang must stay."""
        if not is_asked:
            await self._delete_all(uid)
            return
        for pod in stale:
            await self._pods.delete(pod)

    async def withdraw(self, demand: NodeDemand) -> None:
        """Delete the pods of a demand."""
        await self._delete_all(demand.uid)

    async def _delete_all(self, uid: str) -> None:
        await self._pods.delete_selected(f"{_ASKED}={uid}")

    async def ask(self, request: DemandInput) -> None:
        """Create the missing pods, and mark all of them for autoscalers."""
        # Phase 1: create. Without the gang their shares are not known: an earlier leader asked.
        demand, present = request.demand, {pod.name for pod in self._there}
        name = demand_name(demand)
        names = [f"{name}-{index}" for index in range(len(demand.shares))]
        missing = [index for index, each in enumerate(names) if each not in present]
        if missing and request.gang is not None:
            pods = placeholders_of(
                demand,
                gang=request.gang,
                spec=request.spec,
                pool_uid=await pool_uid(self._client, demand.pool),
                namespace=self._settings.namespace,
                image=self._settings.image,
            )
            for refusal in await self._pods.create([pods[index] for index in missing]):
                await self._give_up(demand, refusal)
                return
        # Phase 2: mark. Autoscalers ignore pods without the condition.
        try:
            await self._pods.mark(
                names, f"stands for a node that TrainingJob {demand.key} waits for"
            )
        except REFUSALS as error:
            await self._give_up(demand, error)

    async def _give_up(self, demand: NodeDemand, error: StatusError) -> None:
        """Give up a demand that a quota, policy or webhook rejects.

        Nodes for a part of a gang would not help.
        """
        self._refused[demand_name(demand)] = error.message
        await self._delete_all(demand.uid)

    def is_refused(self, demand: NodeDemand) -> bool:
        """Return whether the API server rejects the demand's pods.

        An autoscaler's message about a pod is only temporary, so it does not count.
        """
        return demand_name(demand) in self._refused

    async def answer(self, demand: NodeDemand) -> str:
        """Return the newest event about one of its placeholders."""
        name = demand_name(demand)
        if name in self._refused:
            return bounded_answer(
                f"nothing: the API server rejects its placeholders: {self._refused[name]}"
            )
        example = next((pod for pod in self._there if _demand_of(pod) == name), None)
        if example is None:
            return ""
        events = await events_about(self._client, namespace=example.namespace, uid=example.uid)
        return bounded_answer(_newest(events))


def _demand_of(pod: PodView) -> str:
    return pod.name.rpartition("-")[0]


def _newest(events: Iterable[EventView]) -> str:
    newest = max(events, key=lambda event: event.time, default=None)
    if newest is None:
        return ""
    return f"{newest.reason}: {newest.message}" if newest.message else newest.reason
